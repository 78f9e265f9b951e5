"""The report in Markdown, as README has it and as CI shows it in a summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kunlunfork.console import printable
from kunlunfork.matrix import report as reports
from kunlunfork.matrix.cells import Cell
from kunlunfork.matrix.records import Sum
from kunlunfork.matrix.report import Group, Report

LIMIT = 50
BEGIN, END = "<!-- matrix report -->", "<!-- end of matrix report -->"
# What Markdown and HTML give a meaning to.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@:-])")


def text(report: Report) -> str:
    """The report, with a newline at its end."""
    lines = ["| vLLM | device | tier | settings | backends | cells | did not pass | largest error | overlay | date |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    if not report.total:
        lines.append("| no results of the fork as it is | | | | | | | | | |")
    for group in report.groups:
        lines += _tiers(group)
    for group in report.groups:
        lines += ["", *_map(group)]
    lines += _list("Cells that did not pass", [_cell(cell) for cell in report.bad[:LIMIT]], len(report.bad))
    twice = [f"{_code(t.cell.test)}: {', '.join(t.outcomes)}" for t in report.twice]
    lines += _list("Ended differently in different runs", twice[:LIMIT], len(twice))
    lines += _list("Not finished", [plain(line) for line in report.unfinished], len(report.unfinished))
    if report.trend is not None:
        found = report.trend
        counts = (
            f"{len(found.failing)} new failures, {len(found.mended)} mended, {len(found.missing)} missing",
            f"{found.new} new cells, {len(found.slower)} slower launchers",
        )
        lines += ["", f"Against the baseline: {', '.join(counts)}."]
        lines += _list("New failures", [_code(c.test) for c in found.failing[:LIMIT]], len(found.failing))
        lines += _list("Missing", [_code(c.test) for c in found.missing[:LIMIT]], len(found.missing))
        slower = [f"{_code(s.launcher or 'rules')}: {s.before:.1f} s, now {s.now:.1f} s" for s in found.slower]
        lines += _list("Slower", slower, len(slower))
    return "\n".join(lines) + "\n"


def plain(value: str) -> str:
    """Text that is shown as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", _line(value))


def _line(value: str) -> str:
    return printable(" ".join(value.split()))


def _code(value: str) -> str:
    """In a code span that nothing in it can end."""
    value = _line(value)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", value)), default=0))
    return f"{fence} {value} {fence}" if "`" in value else f"`{value}`"


def _tiers(group: Group) -> list[str]:
    lines = []
    for tier in group.tiers:
        rows = group.tier(tier)
        settings = {s for row in rows for s in row.sums if s is not None}
        cells, skipped = (sum(getattr(s, n) for row in rows for s in row.sums.values()) for n in ("cells", "skipped"))
        error = max((row.error for row in rows), default=0.0)
        values = (
            group.pin, group.device, tier, str(len(settings)), ", ".join(group.backends),
            f"{cells}" + (f", {skipped} skipped" if skipped else ""), str(sum(row.bad for row in rows)),
            f"{error:.1e}" if error else "exact", group.overlay[:12], group.date[:10],
        )  # fmt: skip
        lines.append("| " + " | ".join(_cell_text(v) for v in values) + " |")
    return lines


def _cell_text(value: str) -> str:
    # Versions and dates read better without backslashes; nothing in these starts a construct.
    return value if re.fullmatch(r"[\w.+, -]*", value) else plain(value)


def _map(group: Group) -> list[str]:
    title = f"{group.pin} on {group.device}: cells of each launcher under each setting"
    head = ["sites", "launcher", *(_table_code(s) if s else "direct" for s in group.settings)]
    lines = [
        f"<details><summary>{_html(title)}</summary>",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for row in group.rows:
        counts = []
        for setting in group.settings:
            found = row.sums.get(setting)
            counts.append("" if found is None else _count(found))
        sites = ", ".join(map(str, row.sites)) or "-"
        launcher = _table_code(row.launcher) if row.launcher else "rules of the fork"
        lines.append(f"| {sites} | {launcher} | " + " | ".join(counts) + " |")
    return [*lines, "", "</details>"]


def _count(found: Sum) -> str:
    if found.bad:
        return f"**{found.bad}** of {found.cells}"
    if found.skipped == found.cells:
        return "skipped"
    return f"{found.cells}" + (f", {found.skipped} skipped" if found.skipped else "")


def _table_code(value: str) -> str:
    # A pipe ends a cell of a table, even in a code span.
    return _code(value).replace("|", "\\|")


def _html(value: str) -> str:
    return _line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _list(title: str, items: Sequence[str], count: int) -> list[str]:
    if not count:
        return []
    more = [f"- and {count - len(items)} more"] if count > len(items) else []
    return ["", f"**{title}**", "", *(f"- {item}" for item in items), *more]


def _cell(cell: Cell) -> str:
    where = reports.place(cell)
    return (
        f"{cell.outcome}: {_code(cell.test)}"
        + (f" at {_code(where)}" if where else "")
        + f": {_code(reports.said(cell)[:300] or '-')}; again: {_code(reports.command(cell))}"
    )


def into(document: str, made: str) -> str:
    """`document` with `made` between its two marks (raises `ValueError` where they are not there once each)."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ValueError(f"no lines {BEGIN} and {END}")
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}{END}{rest.partition(END)[2]}"
