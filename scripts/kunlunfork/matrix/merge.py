"""Results of several runs as one: what is stale goes, a cell that is there twice counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kunlunfork.content import Content
from kunlunfork.matrix.cells import ERROR, FAILED, PASSED, SKIPPED, Cell
from kunlunfork.matrix.records import Record
from kunlunfork.matrix.results import LAUNCHERS, Loaded

# Of two outcomes of one cell, the one further to the left counts. An error is no outcome of the comparison.
_WORST = (FAILED, PASSED, SKIPPED, ERROR)
# pin -> hashes (series, overlay) of the fork as it is, or None where it has no such pin.
Hashes = Callable[[str], tuple[str, str] | None]


@dataclass(frozen=True)
class Twice:
    """A cell with different outcomes in different runs."""

    cell: Cell
    outcomes: tuple[str, ...]


@dataclass(frozen=True)
class Merged:
    """One cell each, by pin, device, tier and name. `unfinished`: tiers that a run began and nobody ended."""

    cells: tuple[Cell, ...]
    records: tuple[Record, ...]
    twice: tuple[Twice, ...]
    unfinished: tuple[str, ...]
    notes: tuple[str, ...]


def hashes_of(content: Content) -> Hashes:
    """Of the fork of `content`. Raises `ForkError` where a pin's patches or overlay are not valid."""
    from kunlunfork import fork

    known: dict[str, tuple[str, str] | None] = {}

    def find(version: str) -> tuple[str, str] | None:
        if version not in known:
            known[version] = None
            if version in content.versions():
                loaded = fork.load(content, version)
                known[version] = loaded.series_hash, loaded.overlay_hash
        return known[version]

    return find


def merge(loaded: Loaded, hashes: Hashes | None) -> Merged:
    """Bring the cells of `loaded` together.

    hashes: of the fork as it is; cells of another one are dropped and noted. None keeps everything.
    """
    notes = list(loaded.notes)
    fresh, records = _fresh(loaded, hashes, notes)
    groups: dict[object, list[Cell]] = {}
    for cell in fresh:
        groups.setdefault((cell.run.tested, cell.run.tier, cell.test), []).append(cell)
    twice = []
    again = same = 0
    for found in groups.values():
        outcomes = [cell.outcome for cell in found]
        told = dict.fromkeys(o for o in outcomes if o != ERROR)
        again += ERROR in outcomes and bool(told)
        same += len(found) > 1 and len(set(outcomes)) == 1
        if len(told) > 1:
            twice.append(Twice(min(found, key=_rank), tuple(told)))
    if same:
        notes.append(f"{_cells(same)} more than once, with the same outcome: counted once")
    if again:
        notes.append(f"{_cells(again)} ended in an error and ran again: the error does not count")
    if twice:
        notes.append(f"{_cells(len(twice))} ended differently in different runs: the worse outcome counts")
    cells = tuple(_best(found) for found in groups.values())
    notes += _lost_shards(cells)
    return Merged(cells, _last(records, cells), tuple(twice), _unfinished(loaded, cells), tuple(notes))


def _cells(n: int) -> str:
    return f"{n} cell" + ("" if n == 1 else "s")


def _rank(cell: Cell) -> int:
    return _WORST.index(cell.outcome)


def _best(found: Sequence[Cell]) -> Cell:
    worst = min(_rank(cell) for cell in found)
    return [cell for cell in found if _rank(cell) == worst][-1]


def _fresh(loaded: Loaded, hashes: Hashes | None, notes: list[str]) -> tuple[list[Cell], list[Record]]:
    if hashes is None:
        return list(loaded.cells), list(loaded.records)
    stale: Counter[str] = Counter()

    def is_fresh(pin: str, series: str, overlay: str, count: int) -> bool:
        wanted = hashes(pin)
        if wanted == (series, overlay):
            return True
        why = "that this fork has no pin of" if wanted is None else "of another overlay or series"
        stale[f"{pin} ({overlay[:12]}), {why}"] += count
        return False

    cells = [c for c in loaded.cells if is_fresh(c.run.pin, c.run.series, c.run.overlay, 1)]
    records = [r for r in loaded.records if is_fresh(r.pin, r.series, r.overlay, r.cells)]
    notes += [f"stale, dropped: {_cells(n)} of {what}" for what, n in sorted(stale.items())]
    return cells, records


def _last(records: Iterable[Record], cells: Sequence[Cell]) -> tuple[Record, ...]:
    """The newest record of each tier, where there are no cells of it."""
    have = {(c.run.pin, c.run.device, c.run.tier, c.run.overlay) for c in cells}
    last = {(r.pin, r.device, r.tier, r.overlay): r for r in records}
    return tuple(record for key, record in last.items() if key not in have)


# The tier `upstream` has files in the place of launchers.
_FILES = {LAUNCHERS: "files"}


def _unfinished(loaded: Loaded, cells: Sequence[Cell]) -> tuple[str, ...]:
    """What the last run of a tier of a file left undone. A run that goes on plans only what was left."""
    fresh = {cell.run.tested for cell in cells}
    last = {(p.source, p.run.tested, p.run.tier, p.run.shard): p for p in loaded.planned}
    return tuple(
        f"{p.source}: {p.run.tier} of {p.run.pin} ended after {p.ended} of {p.cells} {_FILES.get(p.of, p.of)}"
        for p in last.values()
        if p.ended < p.cells and (p.run.tested in fresh or not cells)
    )


def _lost_shards(cells: Iterable[Cell]) -> list[str]:
    found: dict[tuple[str, str, str], set[int]] = {}
    for cell in cells:
        if cell.run.shard is not None:
            index, _, count = cell.run.shard.partition("/")
            if index.isdigit() and count.isdigit() and int(count) < 10_000:
                found.setdefault((cell.run.pin, cell.run.device, count), set()).add(int(index))
    lost = []
    for (pin, device, count), have in sorted(found.items()):
        missing = [str(i) for i in range(1, int(count) + 1) if i not in have]
        if missing:
            lost.append(f"{pin} on {device}: no cells of shard {', '.join(missing[:20])} of {count}")
    return lost
