"""Whether a clean merge of a Python file did what the edit did: the same lines, in the same function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kunlunfork import scopes
from kunlunfork.rebase import elements, linediff, outline
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.outline import Outline, Place

_MARKER = re.compile(rb"(?m)^(?:<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)(?: .*)?$")


def markers(data: bytes) -> tuple[bytes, ...]:
    """The lines that are conflict markers."""
    return tuple(m[0] for m in _MARKER.finditer(data.replace(b"\r\n", b"\n")))


def check(path: bytes, old: bytes, ours: bytes, new: bytes, merged: bytes) -> str | None:
    """Why a merge without conflicts is not to be trusted; None where it is.

    In a Python file each changed line must lie in the function or class that it lies in in `ours`, in a block of the
    same kind, in the same sort of statement, next to a statement that it was next to; and nothing else may differ from
    `new`. A change that upstream made as well may be missing.

    Args:
        path: of the file, for its suffix.
        old: upstream's file that the edit was made in.
        ours: the same file with the edit.
        new: the file of the other release.
        merged: what merging made of `new` and the edit.
    """
    known = {*markers(ours), *markers(new)}
    found = [marker for marker in markers(merged) if marker not in known]
    if found:
        return f"the merged file has a conflict marker: {found[0].decode(errors='replace')}"
    if not scopes.is_python(path):
        return None
    if new == old and merged == ours:
        return None
    sides = {"the file with the edit": ours, "the file before the edit": old, "upstream's new file": new}
    read = {what: outline.read(data) for what, data in sides.items()}
    result = outline.read(merged)
    for what, side in read.items():
        if side is None:
            return f"{what} does not parse, so that nothing tells where the edit lies"
    if result is None:
        return "the merged file does not parse"
    o, u, n = (side for side in (read["the file before the edit"], read["the file with the edit"],
                                 read["upstream's new file"]))  # fmt: skip
    assert o is not None and u is not None and n is not None
    return _Comparison(o, u, n, result).problem()


@dataclass(frozen=True)
class _Spot:
    """A way to see one change of the edit in the merged file."""

    new_start: int
    merged_start: int


class _Comparison:
    """The edit old -> ours against new -> merged."""

    def __init__(self, old: Outline, ours: Outline, new: Outline, merged: Outline) -> None:
        self.old, self.ours, self.new, self.merged = old, ours, new, merged
        self.edit = linediff.changes(old.lines, ours.lines)
        self.upstream: tuple[Change, ...] | None = None

    def problem(self) -> str | None:
        """Why the merge is not new with the edit, None where it is."""
        # Each state: so many lines of the new file were compared, and the merged file is so many lines ahead.
        states = [(0, 0)]
        for change in self.edit:
            removed, added = change.old_end - change.old_start, change.new_end - change.new_start
            after: dict[tuple[int, int], None] = {}
            reasons: list[str] = []
            for at, shift in states:
                for spot in self._spots(change, at, shift):
                    why = self._why_not(change, spot)
                    if why is None:
                        after[spot.new_start + removed, shift + added - removed] = None
                    else:
                        reasons.append(why)
            if not after:
                after.update(dict.fromkeys(self._listed(change, states)))
            if self._made_upstream(change):
                after.update(dict.fromkeys(states))
            if not after:
                return (
                    reasons[0] if reasons else f"the change of {self._where(change)} is not in the merge as it was made"
                )
            states = list(after)
        rest = any(self.new.lines[at:] == self.merged.lines[at + shift :] for at, shift in states)
        return None if rest else "the merge changes what the edit does not"

    def _spots(self, change: Change, at: int, shift: int) -> Iterator[_Spot]:
        """Every place from line `at` of the new file on at which the merge makes just this change."""
        removed = self.old.lines[change.old_start : change.old_end]
        added = self.ours.lines[change.new_start : change.new_end]
        while True:
            there = self.merged.lines[at + shift : at + shift + len(added)]
            if self.new.lines[at : at + len(removed)] == removed and there == added:
                yield _Spot(at, at + shift)
            if (
                at >= len(self.new.lines)
                or self.new.lines[at : at + 1] != self.merged.lines[at + shift : at + shift + 1]
            ):
                return
            at += 1

    def _listed(self, change: Change, states: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The states after a change that adds to a list which upstream changed too, and is just that in the merge."""
        found = elements.carried(self.old, self.ours, change, self.new)
        for at, shift in states if found is not None else ():
            assert found is not None
            if at == found.end and tuple(self.merged.lines[at + shift - len(found.lines) : at + shift]) == found.lines:
                yield at, shift  # another change of the same list, which was carried as a whole
            start, end = found.start + shift, found.start + shift + len(found.lines)
            if (
                at <= found.start
                and self.new.lines[at : found.start] == self.merged.lines[at + shift : start]
                and tuple(self.merged.lines[start:end]) == found.lines
            ):
                yield found.end, end - found.end

    def _where(self, change: Change) -> str:
        line, side = (
            (change.new_start, self.ours) if change.new_start < change.new_end else (change.old_start, self.old)
        )
        return _shown(side.place(line))

    def _why_not(self, change: Change, spot: _Spot) -> str | None:
        """Why the change is another one at this spot."""
        added = (self.ours, change.new_start, change.new_end, self.merged, spot.merged_start)
        removed = (self.old, change.old_start, change.old_end, self.new, spot.new_start)
        return _differs(added, removed)

    def _made_upstream(self, change: Change) -> bool:
        if self.upstream is None:
            self.upstream = linediff.changes(self.old.lines, self.new.lines)
        added = self.ours.lines[change.new_start : change.new_end]
        for other in self.upstream:
            if (other.old_start, other.old_end) == (change.old_start, change.old_end):
                ranges = (self.ours, change.new_start, change.new_end, self.new, other.new_start)
                return added == self.new.lines[other.new_start : other.new_end] and _differs(ranges) is None
        return False


_Ranges = tuple[Outline, int, int, Outline, int]


def _differs(*ranges: _Ranges) -> str | None:
    """Why lines `start:end` of the first outline are not the same part of the same function as those of the second."""
    pairs = [(m, line, t, at + line - start) for m, start, end, t, at in ranges for line in range(start, end)]
    code = [pair for pair in pairs if pair[0].place(pair[1]).unit is not None]
    for mine, line, theirs, other in code or pairs:
        a, b = mine.place(line), theirs.place(other)
        if not outline.same(a.scope, b.scope):
            other_name = _shown(b) if _shown(a) != _shown(b) else "another of that name"
            return f"the change of {_shown(a)} would land in {other_name}, line {other + 1}"
        if code and not _alike(a, line, b, other):
            return f"line {other + 1}: the change of {_shown(a)} would land in another block or statement of it"
    mine, start, end, theirs, at = next((r for r in ranges if r[1] < r[2]), ranges[0])
    if not any(_beside(mine, start, end, theirs, at, at + end - start)) and not (
        _imports(mine, start, end) and any(_imports(theirs, n, n + 1) for n in (at - 1, at + end - start))
    ):
        return f"line {at + 1}: what is before and after the change of {_shown(mine.place(start))} are others now"
    return None


def _shown(place: Place) -> str:
    scope = place.scope
    return "the module" if scope is None else scope.qualified


def _alike(a: Place, line: int, b: Place, other: int) -> bool:
    """Whether two lines of one text are the same part of the same sort of statement in the same kind of block."""
    if a.unit is None or b.unit is None:
        return a.unit is b.unit
    if (a.part, a.block.kinds) != (b.part, b.block.kinds):
        return False
    if a.part in ("decorator", "clause"):
        return True
    if (line == a.unit.first) != (other == b.unit.first):
        return False
    return type(a.unit.node) is type(b.unit.node) and (line == a.unit.first or a.unit.label == b.unit.label)


def _imports(side: Outline, start: int, end: int) -> bool:
    """Whether lines are of imports, which may change places with others."""
    units = [side.place(line).unit for line in range(max(start, 0), min(end, len(side.lines)))]
    return bool(units) and all(unit is not None and unit.is_import for unit in units)


def _beside(mine: Outline, start: int, end: int, theirs: Outline, other_start: int, other_end: int) -> Iterator[bool]:
    """Whether what is before, and what is after, two ranges of lines is the same."""
    for line, other, step in ((start - 1, other_start - 1, -1), (end, other_end, 1)):
        yield _neighbour(mine, line, step) == _neighbour(theirs, other, step)
    # A change between two functions is next to these, whatever became of the lines in them.
    (left, right), (other_left, other_right) = _siblings(mine, start, end), _siblings(theirs, other_start, other_end)
    yield left is not None and left == other_left
    yield right is not None and right == other_right


def _siblings(side: Outline, start: int, end: int) -> tuple[str | None, str | None]:
    """What names the statements of the same block before and after those that begin in a range of lines."""
    for line in range(start, end):
        place = side.place(line)
        if place.unit is not None and place.unit.first == line:
            units = place.block.units
            at = units.index(place.unit)
            after = next((i for i in range(at, len(units)) if units[i].first >= end), None)
            return units[at - 1].head if at else None, None if after is None else units[after].head
    return None, None


def _neighbour(side: Outline, line: int, step: int) -> str:
    """The nearest line from `line` on that is code, by what it belongs to; the edge of the file is a neighbour too."""
    while 0 <= line < len(side.lines):
        place = side.place(line)
        if place.unit is not None:
            if place.unit.is_doc:
                return "docstring"
            if place.part == "simple":
                return (
                    place.unit.whole
                    if line == (place.unit.first if step > 0 else place.unit.last - 1)
                    else place.unit.label
                )
            if place.part == "decorator":
                return outline.decorator(place.unit, line)
            if place.part == "head":
                return place.unit.head or type(place.unit.node).__name__
            clause = next(block for block in place.unit.blocks if block.first > line)
            return clause.chain[-1]
        line += step
    return "edge"
