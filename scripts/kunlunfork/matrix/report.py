"""What `kunlunfork matrix report` says, as data: groups of results, failing cells, the trend. Renderers print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kunlunfork.matrix import records, trend
from kunlunfork.matrix.cells import OUTCOMES, Cell, replay
from kunlunfork.matrix.merge import Merged, Twice
from kunlunfork.matrix.records import Sum
from kunlunfork.matrix.trend import Trend

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One launcher of a tier: `sums` by setting."""

    tier: str
    launcher: str
    sites: tuple[int, ...]
    sums: dict[str | None, Sum]

    @property
    def cells(self) -> int:
        return sum(s.cells for s in self.sums.values())

    @property
    def bad(self) -> int:
        return sum(s.bad for s in self.sums.values())

    @property
    def error(self) -> float:
        return max((s.error for s in self.sums.values()), default=0.0)

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.sums.values())


@dataclass(frozen=True)
class Group:
    """Results of one fork on one device. `settings`: the columns of the heat map, whose rows are `rows`."""

    pin: str
    device: str
    overlay: str
    settings: tuple[str | None, ...]
    rows: tuple[Row, ...]
    tiers: tuple[str, ...]
    backends: tuple[str, ...]
    versions: dict[str, str]
    machines: tuple[str, ...]
    date: str

    def tier(self, tier: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.tier == tier)


@dataclass(frozen=True)
class Report:
    """`bad`: the cells that did not pass, worst known first; `cells`: all of them, where they are known one by one."""

    groups: tuple[Group, ...]
    cells: tuple[Cell, ...]
    bad: tuple[Cell, ...]
    twice: tuple[Twice, ...]
    unfinished: tuple[str, ...]
    notes: tuple[str, ...]
    trend: Trend | None

    @property
    def total(self) -> int:
        return sum(row.cells for group in self.groups for row in group.rows)

    @property
    def failing(self) -> int:
        return sum(row.bad for group in self.groups for row in group.rows)

    @property
    def ok(self) -> bool:
        """Whether there are results, all cells passed, and none is missing."""
        lost = self.trend is not None and bool(self.trend.missing)
        return bool(self.total) and not (self.failing or self.twice or self.unfinished or lost)


def make(merged: Merged, baseline: Sequence[Cell] | None) -> Report:
    """Gather merged results; `baseline` are the earlier cells."""
    made = trend.compare(merged.cells, baseline) if baseline is not None else None
    notes = merged.notes + (made.notes if made else ())
    bad = sorted((c for c in merged.cells if c.bad), key=lambda c: (c.run.pin, c.run.device, c.run.tier, c.test))
    return Report(_groups(merged), merged.cells, tuple(bad), merged.twice, merged.unfinished, notes, made)


@dataclass
class _Part:
    """What cells and records have in common."""

    sums: tuple[Sum, ...]
    backends: set[str]
    versions: dict[str, str]
    machine: str
    date: str


def _groups(merged: Merged) -> tuple[Group, ...]:
    parts: dict[tuple[str, str, str], list[_Part]] = {}
    runs: dict[int, list[Cell]] = {}
    for cell in merged.cells:
        runs.setdefault(id(cell.run), []).append(cell)
    for cells in runs.values():
        run = cells[0].run
        part = _Part(records.sums(cells), {c.backend for c in cells if c.backend}, run.versions, run.machine,
                     run.date or "")  # fmt: skip
        parts.setdefault((run.pin, run.device, run.overlay), []).append(part)
    for record in merged.records:
        part = _Part(record.sums, set(record.backends), dict(record.versions), record.machine, record.date)
        parts.setdefault((record.pin, record.device, record.overlay), []).append(part)
    return tuple(_group(*key, found) for key, found in sorted(parts.items()))


def _group(pin: str, device: str, overlay: str, parts: Sequence[_Part]) -> Group:
    rows: dict[tuple[str, str], dict[str | None, list[Sum]]] = {}
    for part in parts:
        for s in part.sums:
            rows.setdefault((s.tier, s.launcher), {}).setdefault(s.setting, []).append(s)
    made = [
        Row(tier, launcher, next(iter(by.values()))[0].sites, {k: _total(v) for k, v in by.items()})
        for (tier, launcher), by in rows.items()
    ]
    made.sort(key=lambda row: records.row_order(next(iter(row.sums.values()))))
    newest = max(parts, key=lambda p: p.date)
    return Group(
        pin=pin,
        device=device,
        overlay=overlay,
        settings=tuple(sorted({k for row in made for k in row.sums}, key=records.setting_order)),
        rows=tuple(made),
        tiers=tuple(dict.fromkeys(row.tier for row in made)),
        backends=tuple(sorted(set().union(*(p.backends for p in parts)))),
        versions=newest.versions,
        machines=tuple(dict.fromkeys(p.machine for p in parts)),
        date=newest.date,
    )


def _total(found: Sequence[Sum]) -> Sum:
    one = found[0]
    return Sum(
        one.tier, one.launcher, one.sites, one.setting, sum(s.cells for s in found), sum(s.bad for s in found),
        sum(s.skipped for s in found), max(s.error for s in found), sum(s.seconds for s in found),
    )  # fmt: skip


def command(cell: Cell) -> str:
    """The command that runs a cell again: the recorded one is data of a file that somebody sent, and is not used."""
    return replay(cell)


def place(cell: Cell) -> str:
    """`tensor[index]`, empty where the cell says neither."""
    if cell.tensor is None:
        return ""
    return cell.tensor + ("" if cell.index is None else str(list(cell.index)))


def said(cell: Cell) -> str:
    """One line of what is wrong: of a difference, what differs and not the name of the cell."""
    lines = [line.strip() for line in (cell.message or "").strip().split("\n")]
    return lines[1] if lines[0].startswith("harness.Mismatch") and len(lines) > 1 else lines[0]


def as_json(report: Report) -> dict[str, Any]:
    """The whole report; times in seconds."""
    return {
        "schema": SCHEMA,
        "ok": report.ok,
        "cells": report.total,
        "bad": report.failing,
        "groups": [_group_json(group) for group in report.groups],
        "failing": [_cell_json(cell) for cell in report.bad],
        "twice": [{**_name_json(t.cell), "outcomes": list(t.outcomes)} for t in report.twice],
        "unfinished": list(report.unfinished),
        "notes": list(report.notes),
        "trend": None if report.trend is None else _trend_json(report.trend),
        "outcomes": {o: sum(c.outcome == o for c in report.cells) for o in OUTCOMES},
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "pin": group.pin,
        "device": group.device,
        "overlay": group.overlay,
        "date": group.date,
        "versions": group.versions,
        "machines": list(group.machines),
        "backends": list(group.backends),
        "settings": list(group.settings),
        "rows": [
            {
                "tier": row.tier,
                "launcher": row.launcher,
                "sites": list(row.sites),
                "cells": row.cells,
                "bad": row.bad,
                "error": row.error,
                "seconds": round(row.seconds, 3),
                "settings": [
                    {"setting": s.setting, "cells": s.cells, "bad": s.bad, "skipped": s.skipped}
                    for s in (row.sums[k] for k in group.settings if k in row.sums)
                ],
            }
            for row in group.rows
        ],
    }


def _name_json(cell: Cell) -> dict[str, Any]:
    run = cell.run
    return {"pin": run.pin, "device": run.device, "tier": run.tier, "test": cell.test}


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        **_name_json(cell),
        "launcher": cell.launcher,
        "case": cell.case,
        "backend": cell.backend,
        "setting": cell.setting,
        "outcome": cell.outcome,
        "tensor": cell.tensor,
        "index": None if cell.index is None else list(cell.index),
        "message": cell.message,
        "replay": command(cell),
    }


def _trend_json(found: Trend) -> dict[str, Any]:
    return {
        "failing": [_name_json(c) for c in found.failing],
        "mended": [_name_json(c) for c in found.mended],
        "missing": [_name_json(c) for c in found.missing],
        "new": found.new,
        "slower": [asdict(s) for s in found.slower],
    }
