"""An edit carried over by the statements around it, where text conflicts: to the one place that fits, or nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kunlunfork import scopes
from kunlunfork.rebase import elements, heads, likeness, linediff, names, outline, spans
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.outline import Block, Outline, Unit
from kunlunfork.rebase.scope import check
from kunlunfork.rebase.spans import Cover, Span


@dataclass(frozen=True)
class Splice:
    """Lines `start:end` of the new file become `lines`."""

    start: int
    end: int
    lines: tuple[bytes, ...]


def merge(path: bytes, old: bytes, ours: bytes, new: bytes) -> bytes | None:
    """The edit old -> ours in `new`, each change by text where what is around it did not change, else by statements.

    Args:
        path: of the file, for its suffix.

    Returns:
        the file, which `scope.check` has nothing against; None where a change has no place, or more than one.
    """
    if not scopes.is_python(path):
        return None
    o, u, n = outline.read(old), outline.read(ours), outline.read(new)
    if o is None or u is None or n is None:
        return None
    edit = _Edit(o, u, n)
    for ways in ((edit.by_text, edit.by_statements), (edit.by_statements, edit.by_text)):
        merged = edit.merged(ways)
        if merged is not None and check(path, old, ours, new, merged) is None:
            return merged
    return None


_Way = Callable[[Change], Splice | None]


class _Edit:
    """The changes of one file, and the file that they are to go to."""

    def __init__(self, old: Outline, ours: Outline, new: Outline) -> None:
        self.old, self.ours, self.new = old, ours, new
        self.changes = linediff.changes(old.lines, ours.lines)
        self.upstream = linediff.changes(old.lines, new.lines)

    def merged(self, ways: Sequence[_Way]) -> bytes | None:
        """The new file with every change, each put where the first of `ways` that can puts it."""
        made: list[bytes] = []
        at = 0
        last: Splice | None = None
        for change in self.changes:
            splice = next((found for way in ways if (found := way(change)) is not None), None)
            if splice is not None and splice == last and splice.start < splice.end:
                continue  # another change of the same list, which was carried as a whole
            last = splice
            if splice is None or splice.start < at:
                return None
            made += [*self.new.lines[at : splice.start], *splice.lines]
            at = splice.end
        return b"".join([*made, *self.new.lines[at:]])

    def by_text(self, change: Change) -> Splice | None:
        """Where upstream changed neither the lines nor those next to them."""
        shift = 0
        for other in self.upstream:
            if other.old_start > change.old_end:
                break
            if other.old_end >= change.old_start:
                return None
            shift = other.new_end - other.old_end
        return self._splice(change, change.old_start + shift, change.old_end + shift)

    def by_statements(self, change: Change) -> Splice | None:
        """Where the statements are that it changes, or one that it is next to."""
        for slid in spans.slides(self.old.lines, self.ours.lines, change):
            span = spans.span(self.old, self.ours, slid)
            if span is not None:
                found = self._replaced(span, span.gone) if span.gone else self._inserted(span)
                found = found or self._decorated(span, slid)
                if found is not None:
                    return found
        listed = elements.carried(self.old, self.ours, change, self.new)
        return None if listed is None else Splice(listed.start, listed.end, listed.lines)

    def _splice(self, change: Change, start: int, end: int) -> Splice:
        return Splice(start, end, tuple(self.ours.lines[change.new_start : change.new_end]))

    def _replaced(self, span: Span, gone: Cover) -> Splice | None:
        """Statements that upstream has unchanged, once in the block; where more often, those with their neighbours."""
        exact = bool(_blocks(self.new, gone.block, exact=True))
        new, old = (_blocks(side, gone.block, exact=exact) for side in (self.new, self.old))
        before, after = gone.block.units[: gone.start][-1:], gone.block.units[gone.end :][:1]
        for left, right in (([], []), (before, []), ([], after), (before, after)):
            wanted = [u.whole for u in (*left, *gone.units, *right)]
            there = list(_sequences(new, wanted))
            if len(there) == 1 and len(list(_sequences(old, wanted))) == 1:
                block, at = there[0]
                at += len(left)
                return self._over(span.change, gone.units, block.units[at : at + len(gone.units)])
        return None

    def _over(self, change: Change, units: Sequence[Unit], found: Sequence[Unit]) -> Splice | None:
        """A change of `units` of the old file made to `found` of the new one."""
        start = found[0].first - (units[0].first - change.old_start)
        end = found[-1].last + change.old_end - units[-1].last
        if start < 0 or self.new.lines[start:end] != self.old.lines[change.old_start : change.old_end]:
            return None  # other comments, another indentation
        return self._splice(change, start, end)

    def _inserted(self, span: Span) -> Splice | None:
        """Statements next to one that upstream has unchanged, once in the block, or at the start of the block."""
        assert span.mine is not None
        block, change = span.mine.block, span.change
        exact = bool(_blocks(self.new, block, exact=True))
        new, ours = (_blocks(side, block, exact=exact) for side in (self.new, self.ours))
        before, after = block.units[: span.mine.start][-1:], block.units[span.mine.end :][:1]
        if all(unit.is_import for unit in span.mine.units):
            # Imports may change places: the nearest that stayed will do.
            before = _nearest_import(block.units[: span.mine.start][::-1], ours, new) or before
            after = _nearest_import(block.units[span.mine.end :], ours, new) or after
        left, right = (_only(units[0], ours, new) if units else None for units in (before, after))
        if left and right:
            if left[0] is not right[0] or left[1] >= right[1]:
                return None
            between = left[0].units[left[1] + 1 : right[1]]
            if not names.commute(span.mine.units, between):
                return None  # upstream put statements there, too, and which come first matters
        elif not left and not right:
            if before or not exact or len(new) != 1 or len(ours) != 1:
                return None
            return self._at(change, new[0], block, _start(new[0], self.new.lines))
        chosen, near = (left, before[0]) if left else (right, after[0])
        assert chosen is not None
        unit = chosen[0].units[chosen[1]]
        gap = self.ours.lines[near.last : change.new_start] if left else self.ours.lines[change.new_end : near.first]
        at = unit.last if left else unit.first - len(gap)
        same = at >= 0 and self.new.lines[at : at + len(gap)] == gap
        if left:
            at += len(gap) if same else 0
        else:
            at += 0 if same else len(gap)
        return self._at(change, chosen[0], block, at)

    def _decorated(self, span: Span, change: Change) -> Splice | None:
        """Decorators of a function that is there under its name."""
        found = heads.decorated(span, change, self.new)
        if found is None or span.mine is None:
            return None
        return self._at(change, found[0], span.mine.block, found[1])

    def _at(self, change: Change, block: Block, like: Block, at: int) -> Splice | None:
        return self._splice(change, at, at) if block.indent == like.indent else None


def _nearest_import(units: Sequence[Unit], mine: Sequence[Block], theirs: Sequence[Block]) -> list[Unit]:
    """The first of the imports at the head of `units` that the new file has as well; none where there is none."""
    imports = itertools.takewhile(lambda unit: unit.is_import, units)
    return [*itertools.islice((unit for unit in imports if _only(unit, mine, theirs)), 1)]


def _start(block: Block, lines: Sequence[bytes]) -> int:
    """The first line of a block, with the comments and blank lines above its first statement."""
    at = block.first
    while at and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith(b"#")):
        at -= 1
    return at


def _blocks(side: Outline, like: Block, *, exact: bool) -> list[Block]:
    """The blocks of a file that are where `like` is in its own: same scope, same headers or (not `exact`) kinds."""
    return [
        block
        for block in side.blocks
        if block.kinds == like.kinds
        and outline.same(like.scope, block.scope)
        and (not exact or block.chain == like.chain)
    ]


def _sequences(blocks: Sequence[Block], wanted: Sequence[str]) -> Iterator[tuple[Block, int]]:
    """Where these statements follow each other."""
    for block in blocks:
        for at in range(len(block.units) - len(wanted) + 1):
            if all(block.units[at + k].whole == text for k, text in enumerate(wanted)):
                yield block, at


def _only(unit: Unit, mine: Sequence[Block], theirs: Sequence[Block]) -> tuple[Block, int] | None:
    """Where the new file has a statement that is once on either side: all of it, else what names it."""
    ways: tuple[Callable[[Unit], str | None], ...] = (lambda u: u.whole, lambda u: u.head)
    for text in ways:
        wanted = text(unit)
        if wanted is None:
            return None
        here = sum(text(u) == wanted for block in mine for u in block.units)
        there = [(block, i) for block in theirs for i, u in enumerate(block.units) if text(u) == wanted]
        if here == len(there) == 1:
            return there[0]
        if there or here != 1:
            return None
    return None


def merge_moved(
    old_path: bytes, old: bytes, ours: bytes, candidates: Mapping[bytes, bytes]
) -> tuple[bytes, bytes] | None:
    """The same for functions and classes that moved to another file.

    Args:
        candidates: files of the other release, by path.

    Returns:
        the path of the one file that has them now, and its bytes with the edit; None where none or more do, or where
        what has their names there is mostly something else.
    """
    if not scopes.is_python(old_path):
        return None
    o, u = outline.read(old), outline.read(ours)
    if o is None or u is None:
        return None
    wanted = likeness.edited(o, u)
    if not wanted:
        return None
    found = []
    for path, data in candidates.items():
        if path == old_path or not all(scope.name.encode() in data for scope in wanted):
            continue
        n = outline.read(data)
        if n is not None and all(any(outline.same(scope, b.scope) for b in n.blocks) for scope in wanted):
            found.append((path, n))
    # Another file with these names makes it a guess, however unlike they are.
    if len(found) != 1 or not all(likeness.is_alike(scope, o, found[0][1]) for scope in wanted):
        return None
    merged = merge(found[0][0], old, ours, candidates[found[0][0]])
    return None if merged is None else (found[0][0], merged)
