"""Cells of the matrix: one comparison under one setting, and what a run makes of them. `results` has their file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, ERROR, SKIPPED = OUTCOMES = ("passed", "failed", "error", "skipped")
BAD = (FAILED, ERROR)


@dataclass(frozen=True)
class Run:
    """What all cells of a tier of one run share.

    overlay, series: hashes of what was tested. switches: the mode of the settings. date: ISO 8601, UTC.
    command: the command line. shard: `I/N`, or None where the run was whole. random: random cases a site.
    steps: of a scenario of the step tier.
    """

    pin: str
    device: str
    tier: str
    seed: int
    series: str
    overlay: str
    versions: dict[str, str]
    machine: str
    random: int | None = None
    switches: str | None = None
    date: str | None = None
    command: tuple[str, ...] = ()
    shard: str | None = None
    steps: int | None = None

    @property
    def tested(self) -> tuple[str, str, str, str, int, int | None]:
        """Cells of equal `tested` and equal names compare the same things. The seed and the number of the random cases
        belong to it: they say what the inputs of such a case are."""
        return self.pin, self.device, self.series, self.overlay, self.seed, self.random


@dataclass(frozen=True)
class Cell:
    """One comparison.

    sites: ids of the Triton kernels that the launcher replaces. launcher: `module:function` of the fork; empty where
    a test belongs to no site. backend: what the fork was asked to run; ran: what ran. setting: name of the setting
    of the switches; off: those that were off; both None where the launcher was called directly.
    error: largest tolerated absolute error. seconds: of the cell; upstream: of upstream's run of the case, which cells
    of a case share. finished: seconds since 1970. test: pytest's id, or another name that the tier can run again.
    tensor: path of the first thing that differs; index: of its first element that differs.
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
    upstream: float | None = None
    tensor: str | None = None
    index: tuple[int, ...] | None = None
    replay: str | None = None

    @property
    def unit(self) -> str:
        """What is never divided among processes or machines: they share upstream's run of the case."""
        return unit(self.run.tier, self.launcher, self.case)

    @property
    def bad(self) -> bool:
        return self.outcome in BAD


def unit(tier: str, launcher: str, case: str) -> str:
    return f"{tier}:{launcher or '*'}/{case}"


def replay(cell: Cell) -> str:
    """The command that runs this cell alone."""
    run = cell.run
    words: list[Any] = ["kunlunfork", "matrix", "run", "--vllm", run.pin, "--device", run.device, "--tier", run.tier]
    words += ["--switches", _mode(cell.setting)]
    if cell.backend is not None:
        words += ["--backend", cell.backend]
    if run.random is not None:
        words += ["--random", run.random]
    if run.steps is not None and run.tier == "step":
        words += ["--steps", run.steps]
    words += ["--seed", run.seed, "--cell", cell.test]
    return shlex.join(str(word) for word in words)


def _mode(setting: str | None) -> str:
    """A mode that has the setting, the smallest one."""
    if setting in (None, "all-on", "all-off"):
        return setting or "all-on"
    assert setting is not None
    return "full" if "," in setting else "each"


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
    return Summary({o: counted[o] for o in OUTCOMES}, tuple(rows), tuple(c for c in cells if c.bad))


def _row(launcher: str, group: Sequence[Cell]) -> Row:
    return Row(
        launcher=launcher,
        sites=group[0].sites,
        cases=len({c.case for c in group}),
        cells=len(group),
        bad=sum(c.bad for c in group),
        error=max((c.error or 0.0 for c in group), default=0.0),
        seconds=sum(c.seconds for c in group),
        ran=tuple(sorted({c.ran for c in group if c.ran})),
    )
