"""Cells of the matrix: one comparison under one setting, and its JSON line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork.errors import ForkError

SCHEMA = 1
PASSED, FAILED, ERROR, SKIPPED = OUTCOMES = ("passed", "failed", "error", "skipped")


@dataclass(frozen=True)
class Run:
    """What all cells of a run share."""

    pin: str
    device: str
    tier: str
    seed: int
    series: str
    overlay: str
    versions: dict[str, str]
    machine: str


@dataclass(frozen=True)
class Cell:
    """One comparison.

    sites: ids of the Triton kernels that the launcher replaces. launcher: `module:function` of the fork; empty where
    a test belongs to no site. backend: what the fork was asked to run; ran: what ran. setting: name of the setting
    of the switches; off: those that were off; both None where the launcher was called directly.
    error: largest tolerated absolute error. seconds: of the cell, upstream's run not included.
    finished: seconds since 1970. test: pytest's id.
    """

    run: Run
    test: str
    case: str
    outcome: str
    sites: tuple[int, ...] = ()
    launcher: str = ""
    backend: str | None = None
    ran: str | None = None
    setting: str | None = None
    off: tuple[str, ...] | None = None
    error: float | None = None
    seconds: float = 0.0
    finished: float = 0.0
    message: str | None = None

    def line(self) -> str:
        """The JSON line, with its newline."""
        flat: dict[str, Any] = {"schema": SCHEMA, **asdict(self.run)}
        flat.update({k: v for k, v in asdict(self).items() if k != "run"})
        return json.dumps(flat, sort_keys=True) + "\n"


def read(path: Path) -> tuple[Cell, ...]:
    """The cells of a file of JSON lines.

    Raises:
        ForkError: a line is not a cell of this schema; names the line.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            raw = json.loads(line)
            if raw.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            run = Run(**{name: raw.pop(name) for name in Run.__dataclass_fields__})
            for name in ("sites", "off"):
                raw[name] = raw[name] if raw[name] is None else tuple(raw[name])
            found.append(Cell(run=run, **raw))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ForkError(f"{path}:{number} is not a cell", found=f"{type(e).__name__}: {e}") from e
    return tuple(found)


@dataclass(frozen=True)
class Summary:
    """Counts of a run. `rows`: per launcher, what was seen; `bad` the cells that did not pass."""

    counts: dict[str, int]
    rows: tuple[Row, ...]
    bad: tuple[Cell, ...]

    @property
    def ok(self) -> bool:
        return not self.bad


@dataclass(frozen=True)
class Row:
    launcher: str
    sites: tuple[int, ...]
    cases: int
    cells: int
    bad: int
    error: float
    seconds: float
    ran: tuple[str, ...] = field(default=())


def summary(cells: Iterable[Cell]) -> Summary:
    """Count the cells, and gather them by launcher, in the order of the kernels' ids."""
    cells = tuple(cells)
    counted = Counter(cell.outcome for cell in cells)
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.launcher, []).append(cell)
    rows = sorted((_row(name, group) for name, group in groups.items()), key=lambda r: (not r.sites, r.sites))
    bad = tuple(c for c in cells if c.outcome in (FAILED, ERROR))
    return Summary({o: counted[o] for o in OUTCOMES}, tuple(rows), bad)


def _row(launcher: str, group: Sequence[Cell]) -> Row:
    return Row(
        launcher=launcher,
        sites=group[0].sites,
        cases=len({c.case for c in group}),
        cells=len(group),
        bad=sum(c.outcome in (FAILED, ERROR) for c in group),
        error=max((c.error or 0.0 for c in group), default=0.0),
        seconds=sum(c.seconds for c in group),
        ran=tuple(sorted({c.ran for c in group if c.ran})),
    )
