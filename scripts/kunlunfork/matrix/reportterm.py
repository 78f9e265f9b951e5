"""The report for a terminal."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from kunlunfork.console import rows, table
from kunlunfork.matrix import report as reports
from kunlunfork.matrix.cells import Cell
from kunlunfork.matrix.report import Group, Report, Row
from kunlunfork.matrix.trend import Trend

# More failing cells than these are counted, not listed.
LIMIT = 20


def text(report: Report) -> str:
    with io.StringIO() as lines:
        with redirect_stdout(lines):
            _show(report)
        return lines.getvalue()


def _show(report: Report) -> None:
    for group in report.groups:
        _group(group)
        print()
    for title, lines in (
        ("cells that did not pass", [line for cell in report.bad[:LIMIT] for line in _cell(cell)]),
        ("ended differently in different runs", [f"{_name(t.cell)}: {', '.join(t.outcomes)}" for t in report.twice]),
        ("not finished", list(report.unfinished)),
        ("notes", list(report.notes)),
    ):
        if lines:
            print(f"{title}:")
            for line in lines[: 4 * LIMIT]:
                print(f"  {line}")
            if title.startswith("cells") and len(report.bad) > LIMIT:
                print(f"  ... and {len(report.bad) - LIMIT} more (--format json has them all)")
            print()
    if report.trend is not None:
        _trend(report.trend)
    print(verdict(report))


def verdict(report: Report) -> str:
    """One line that says how it stands."""
    if not report.total:
        return "no results of this fork"
    return f"{report.total} cells, " + (f"{report.failing} did not pass" if report.failing else "all passed")


def _group(group: Group) -> None:
    rows(
        [
            ("vLLM", f"{group.pin} on {group.device}"),
            ("overlay", group.overlay[:12]),
            ("backends", ", ".join(group.backends) or "-"),
            ("versions", ", ".join(f"{k} {v}" for k, v in sorted(group.versions.items()))),
            ("machine", "; ".join(group.machines)),
            ("date", group.date or "-"),
        ]
    )
    print()
    head = ("tier", "sites", "launcher", *(_column(s) for s in group.settings), "seconds")
    table(head, [_row(group, row) for row in group.rows])
    print("cells that ran; N! did not pass")


def _column(setting: str | None) -> str:
    return setting or "direct"


def _row(group: Group, row: Row) -> tuple[str, ...]:
    counts = []
    for setting in group.settings:
        found = row.sums.get(setting)
        counts.append("" if found is None else f"{found.bad}! of {found.cells}" if found.bad else str(found.cells))
    sites = ",".join(map(str, row.sites)) or "-"
    return row.tier, sites, row.launcher or "(rules)", *counts, f"{row.seconds:.1f}"


def _name(cell: Cell) -> str:
    return f"{cell.run.pin} {cell.run.device} {cell.run.tier} {cell.test}"


def _cell(cell: Cell) -> list[str]:
    where = reports.place(cell)
    return [
        f"{cell.outcome}: {_name(cell)}",
        f"  {where + ': ' if where and not reports.said(cell).startswith(where) else ''}{reports.said(cell)[:300]}",
        f"  {reports.command(cell)}",
    ]


def _trend(found: Trend) -> None:
    print("against the baseline:")
    for title, cells in (("new failures", found.failing), ("mended", found.mended), ("missing", found.missing)):
        print(f"  {len(cells)} {title}")
        for cell in cells[:LIMIT]:
            print(f"    {_name(cell)}")
        if len(cells) > LIMIT:
            print(f"    ... and {len(cells) - LIMIT} more")
    print(f"  {found.new} that the baseline has not")
    print(f"  {len(found.slower)} slower")
    for s in found.slower:
        print(f"    {s.tier} {s.launcher or '(rules)'}: {s.before:.1f} -> {s.now:.1f} s in {s.cells} cells")
    print()
