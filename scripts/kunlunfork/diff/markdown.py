"""The report in Markdown, for a pull request or a summary of CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kunlunfork import paths
from kunlunfork.console import printable
from kunlunfork.diff import table, words
from kunlunfork.diff.report import Report
from kunlunfork.diff.text import FileDiff
from kunlunfork.rebase import outcome

# What Markdown and HTML give a meaning to.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@-])")


def text(report: Report) -> str:
    """The report, with a newline at its end. Of the overlay's files only their names and sizes are in it."""
    lines = [f"### {plain(words.title(report))}", "", *_fates(report), *_files(report), *_symbols(report)]
    lines += [*_stages(report), *_points(report), *_hunks(report)]
    return "\n".join(lines).rstrip("\n") + "\n"


def plain(value: str) -> str:
    """Text that is shown as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(value.split())))


def code(value: str) -> str:
    """In a code span that nothing in it can end, in a cell of a table too."""
    value = printable(" ".join(value.split())).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", value)), default=0))
    return f"{fence} {value} {fence}" if "`" in value else f"`{value}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _fates(report: Report) -> list[str]:
    """What to do first: what can go, and what a person must look at."""
    wanted = (outcome.UPSTREAMED, outcome.PARTLY, outcome.CONFLICT)
    rows = [
        (plain(each.kind), code(each.patch), plain(each.version), plain("; ".join(each.proof)))
        for each in report.fates if each.kind in wanted
    ]  # fmt: skip
    if report.against is None:
        return []
    rows += [
        ("gone upstream", code(f"{row.path}::{row.name}"), plain(row.drift.versions[-1] if row.drift else ""),
         "the fork stands in for it: droppable, or renamed")
        for row in report.symbols or () if row.orphaned
    ]  # fmt: skip
    if not rows:
        carried = len({each.patch for each in report.fates})
        return [f"Nothing is droppable, and no patch conflicts ({carried} carried to {report.against}).", ""]
    return _table(("patches", "", "release", "why"), rows)


def _files(report: Report) -> list[str]:
    head = ["file", report.mine, *([report.against, ""] if report.against is not None else [])]
    rows = []
    for met in report.met:
        row = [code(paths.show(met.path)), _counts(met.ours)]
        rows.append([*row, *([_counts(met.theirs), plain(words.meeting(met))] if report.against is not None else [])])
    return _table(head, rows)


def _counts(diff: FileDiff | None) -> str:
    if diff is None:
        return ""
    kind = "" if diff.section.kind == "modify" else f"{diff.section.kind} "
    return kind + ("binary" if diff.section.binary else f"+{diff.added} -{diff.removed}")


def _symbols(report: Report) -> list[str]:
    """What the fork does something with; what only mainline did is counted."""
    rows = []
    every = report.symbols or ()
    for row in every:
        if row.state in (table.SAME, table.UPSTREAM_ONLY, table.FORK_ONLY):
            continue
        by = "<br>".join([*map(code, row.patches), *(code(str(each)) for each in row.by)])
        drift = "" if row.drift is None else plain(str(row.drift))
        rows.append((plain(row.state), code(f"{row.path}::{row.name}"), by, drift))
    counted = ", ".join(f"{count} {state}" for state, count in table.counts(every).items())
    head = ("", "symbol", "by", f"mainline to {report.against}" if report.against is not None else "")
    return [f"{len(every)} symbols: {counted}.", "", *_table(head, rows)] if every else []


def _stages(report: Report) -> list[str]:
    rows = []
    for stage in report.interfaces.stages if report.interfaces is not None else ():
        calls = "<br>".join(code(name) for name in dict.fromkeys(entry.to for entry in stage.calls))
        changed = [f"\\+ {code(name)}" for name in stage.arrived] + [f"\\- {code(name)}" for name in stage.left]
        fork = "<br>".join(code(name) for (_, name), _ in stage.replaced)
        rows.append([plain(stage.name), calls, fork, *(["<br>".join(changed)] if report.against is not None else [])])
    newer = [f"mainline to {report.against}"] if report.against is not None else []
    return _table(("stage of a step", f"calls in {report.pin}", "the fork replaces", *newer), rows)


def _points(report: Report) -> list[str]:
    rows = []
    for each in report.points:
        changes = "<br>".join(f"{plain(one.version)}: {plain(one.says)}" for one in each.changes)
        ours = "" if each.ours is None else plain(each.ours.says)
        row = [plain(each.point.title), plain(each.point.reference), plain(each.now.says), ours]
        rows.append([*row, *([changes] if report.against is not None else [])])
    changed = [f"changed to {report.against}"] if report.against is not None else []
    return _table(("DSpark", "reference", report.pin, "fork, where it differs", *changed), rows)


def _hunks(report: Report) -> Iterator[str]:
    """The fork's edits of upstream's files."""
    for met in report.met:
        diff = met.ours
        if diff is None or diff.section.kind == "add" or not diff.section.hunks or diff.section.binary:
            continue
        yield f"<details><summary>{code(paths.show(met.path))}</summary>"
        yield ""
        for line in words.head(report, met):
            yield f"- {plain(line)}"
        yield ""
        for hunk, notes in zip(diff.section.hunks, words.notes(report, met), strict=True):
            for note in notes:
                yield f"- {plain(note)}"
            body = [printable(line.decode("utf-8", "backslashreplace")) for line in hunk.lines]
            fence = "`" * max(3, 1 + max((len(run) for line in body for run in re.findall("`+", line)), default=0))
            place = f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@"
            yield from ("", f"{fence}diff", place, *body, fence, "")
        yield "</details>"
        yield ""
