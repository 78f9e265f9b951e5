"""Whether a function of the same name in another file is the same function."""

from __future__ import annotations

from collections import Counter

from kunlunfork.rebase import linediff, outline
from kunlunfork.rebase.outline import Outline, Scope

# Of fewer statements than this too many functions are made; of the others, this share must be there still.
_FEWEST = 3
_SHARE = 0.5


def edited(old: Outline, ours: Outline) -> list[Scope]:
    """The innermost functions and classes of the old file that an edit lies in; none where it also lies elsewhere."""
    found: dict[int, Scope] = {}
    for change in linediff.changes(old.lines, ours.lines):
        if change.new_start < change.new_end:
            side, lines = ours, range(change.new_start, change.new_end)
        else:
            side, lines = old, range(change.old_start, change.old_end)
        for line in lines:
            place = side.place(line)
            if place.unit is None:
                continue
            scope: Scope | None = place.scope
            # What the edit adds as a whole lies in what it is added to.
            known = None
            while scope is not None and known is None:
                known, scope = _find(scope, old), scope.parent
            if known is None:
                return []
            found[id(known)] = known
    return [*found.values()]


def _find(scope: Scope, side: Outline) -> Scope | None:
    return next((b.scope for b in side.blocks if b.scope is not None and outline.same(scope, b.scope)), None)


def is_alike(scope: Scope, old: Outline, new: Outline) -> bool:
    """Whether half of the statements of a function or class are in that of the same name in the other file."""
    mine, theirs = _statements(scope, old), _statements(scope, new)
    return mine.total() >= _FEWEST and (mine & theirs).total() >= _SHARE * mine.total()


def _statements(scope: Scope, side: Outline) -> Counter[str]:
    """The statements in a scope, those inside of others and of its functions too, by what they are."""
    return Counter(
        (unit.head or "") if unit.blocks else unit.whole
        for block in side.blocks
        if any(outline.same(scope, around) for around in _around(block.scope))
        for unit in block.units
        if not unit.is_doc
    )


def _around(scope: Scope | None) -> list[Scope]:
    found = []
    while scope is not None:
        found.append(scope)
        scope = scope.parent
    return found
