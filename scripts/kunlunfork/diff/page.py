"""The report as one HTML file that asks for nothing else: no script, no font, no picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from kunlunfork import __version__, paths
from kunlunfork.console import printable
from kunlunfork.diff import sidebyside, table, words
from kunlunfork.diff.report import Report
from kunlunfork.diff.text import FileDiff
from kunlunfork.rebase import outcome

TEMPLATE = "page.html.j2"
LIGHT, DARK = "xcode", "github-dark"
# Lines of files beyond which unchanged code is only counted: a page of 100 MB opens nowhere.
_FOLDED = 60_000

# What nearly all of the fork lies in, and what makes its names too long for a column.
_RUNNER = "vllm/v1/worker/gpu/"


def text(report: Report) -> bytes:
    """The page, in UTF-8. Every value is escaped, by the template engine or by `sidebyside`."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["printable"] = lambda value: printable(str(value))
    template = environment.from_string((resources.files("kunlunfork.diff") / TEMPLATE).read_text(encoding="utf-8"))
    light, dark = (_style(name) for name in (LIGHT, DARK))
    page = template.render(
        report=report, title=words.title(report), files=list(_files(report)), rows=_rows(report),
        counts=table.counts(report.symbols or ()), light=light, dark=dark, tool=__version__,
        orphans=[row for row in report.symbols or () if row.orphaned],
        urgent=[f for f in report.fates if f.kind in (outcome.UPSTREAMED, outcome.PARTLY, outcome.CONFLICT)],
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace") + b"\n"


def _style(name: str) -> str:
    """The colours of a style of Pygments, for the classes that `code` writes."""
    from pygments.styles import get_style_by_name
    from pygments.token import STANDARD_TYPES

    rules = []
    for kind, style in get_style_by_name(name):
        short = STANDARD_TYPES.get(kind, "")
        parts = [f"color:#{style['color']}"] if style["color"] else []
        parts += ["font-weight:600"] if style["bold"] else []
        parts += ["font-style:italic"] if style["italic"] else []
        if short and parts:
            rules.append(f"td .{short}{{{';'.join(parts)}}}")
    return "".join(rules)


def _files(report: Report) -> Iterator[dict[str, Any]]:
    from markupsafe import Markup  # a part of the template engine

    size = sum(old.count(b"\n") + new.count(b"\n") for old, new in report.contents.values())

    def shown(diff: FileDiff | None, notes: list[list[str]], headings: Sequence[str]) -> Markup:
        if diff is None:
            return Markup()
        old, new = report.contents.get(diff, (b"", b""))
        return Markup(sidebyside.table(diff, old, new, notes, headings, fold=size <= _FOLDED))

    for number, met in enumerate(report.met):
        mine = met.ours is not None
        headings = report.headings.get(met.ours.path, ()) if met.ours is not None else ()
        yield {
            "id": f"f{number}", "path": paths.show(met.path), "ours": _counts(met.ours), "theirs": _counts(met.theirs),
            "meeting": words.meeting(met), "head": words.head(report, met) if mine else [],
            "fork": shown(met.ours, words.notes(report, met) if mine else [], headings),
            "mainline": shown(met.theirs, [], ()),
            "added": mine and met.ours is not None and met.ours.section.kind == "add",
        }  # fmt: skip


def _counts(diff: FileDiff | None) -> str:
    if diff is None:
        return ""
    kind = {"add": "new ", "delete": "deleted ", "rename": "renamed ", "copy": "copied ", "mode": "mode "}
    what = "binary" if diff.section.binary else f"+{diff.added} −{diff.removed}"
    return kind.get(diff.section.kind, "") + what


def _rows(report: Report) -> dict[str, list[dict[str, Any]]]:
    """The table of symbols: what the fork does something with, and what only mainline or only the fork has."""
    found: dict[str, list[dict[str, Any]]] = {"fork": [], "mainline": [], "own": []}
    for row in report.symbols or ():
        if row.plain:
            continue
        which = "own" if row.state == table.FORK_ONLY else "fork"
        which = "mainline" if row.state in (table.SAME, table.UPSTREAM_ONLY) else which
        found[which].append({
            "state": row.state, "path": row.path, "name": row.name or "(module)", "kind": row.kind, "line": row.line,
            "signature": row.signature, "by": [*row.patches, *(str(each).replace(_RUNNER, "") for each in row.by)],
            "fork": row.fork,
            "drift": "" if row.drift is None else row.drift.kind, "said": "" if row.drift is None else str(row.drift),
        })  # fmt: skip
    return found
