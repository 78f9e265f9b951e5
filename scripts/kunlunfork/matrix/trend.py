"""How results stand to earlier ones: what fails now, what is mended, what is gone, what takes longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kunlunfork.matrix.cells import PASSED, Cell

# A launcher is slower where its cells take this many times as long as before, and this many seconds longer.
RATIO = 1.5
SECONDS = 0.5


@dataclass(frozen=True)
class Slower:
    """Seconds of the cells of a launcher that passed both times."""

    tier: str
    launcher: str
    cells: int
    before: float
    now: float


@dataclass(frozen=True)
class Trend:
    """`failing`: bad now, and not before; `mended`: the other way round; `missing`: only there before (old cells)."""

    failing: tuple[Cell, ...]
    mended: tuple[Cell, ...]
    missing: tuple[Cell, ...]
    new: int
    slower: tuple[Slower, ...]
    notes: tuple[str, ...]


def compare(now: Sequence[Cell], before: Sequence[Cell]) -> Trend:
    """Compare by device, tier, inputs and name: the same pin where the baseline has it, else the one that it has."""
    pins = {c.run.pin for c in now}
    known = {c.run.pin for c in before}
    notes = []
    anywhere = not pins & known
    if anywhere and before and now:
        notes.append(f"the baseline is of {', '.join(sorted(known))}, the results are of {', '.join(sorted(pins))}")

    def key(cell: Cell) -> tuple[object, ...]:
        run = cell.run
        return "" if anywhere else run.pin, run.device, run.tier, run.seed, run.random, cell.test

    old = {key(c): c for c in before}
    new = {key(c): c for c in now}
    both = [(old[k], c) for k, c in new.items() if k in old]
    return Trend(
        failing=tuple(c for k, c in new.items() if c.bad and (k not in old or not old[k].bad)),
        mended=tuple(c for was, c in both if was.bad and not c.bad),
        missing=tuple(c for k, c in old.items() if k not in new),
        new=sum(k not in old for k in new),
        slower=_slower((was, c) for was, c in both if was.outcome == c.outcome == PASSED),
        notes=tuple(notes),
    )


def _slower(pairs: Iterable[tuple[Cell, Cell]]) -> tuple[Slower, ...]:
    spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for was, now in pairs:
        spent.setdefault((now.run.tier, now.launcher), []).append((was.seconds, now.seconds))
    found = [
        Slower(tier, launcher, len(all_), sum(a for a, _ in all_), sum(b for _, b in all_))
        for (tier, launcher), all_ in spent.items()
    ]
    slower = [s for s in found if s.now > RATIO * s.before and s.now > s.before + SECONDS]
    return tuple(sorted(slower, key=lambda s: s.before - s.now))
