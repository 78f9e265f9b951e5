"""A change of lines as whole statements of one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kunlunfork.rebase import outline
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.outline import Block, Outline, Unit


@dataclass(frozen=True)
class Cover:
    """The statements `start:end` of a block."""

    block: Block
    start: int
    end: int

    @property
    def units(self) -> Sequence[Unit]:
        return self.block.units[self.start : self.end]

    @property
    def first(self) -> int:
        return self.units[0].first

    @property
    def last(self) -> int:
        return self.units[-1].last


@dataclass(frozen=True)
class Span:
    """A change grown until it cuts no statement: `gone` of the old file became `mine`; not both are None."""

    change: Change
    gone: Cover | None
    mine: Cover | None


def cover(side: Outline, start: int, end: int) -> Cover | None:
    """The statements of the innermost block that lines `start:end` touch; None where they are blank or comments."""
    code = [line for line in range(start, end) if side.place(line).unit is not None]
    if not code:
        return None
    block = side.module
    while True:
        touched = [i for i, u in enumerate(block.units) if u.first <= code[-1] and code[0] < u.last]
        if len(touched) == 1:
            inner = [b for b in block.units[touched[0]].blocks if b.first <= code[0] and code[-1] < b.last]
            if inner:
                block = inner[0]
                continue
        return Cover(block, touched[0], touched[-1] + 1)


def span(old: Outline, ours: Outline, change: Change) -> Span | None:
    """A change as statements, None where it is none, or reaches into different blocks."""
    start, end, old_start, old_end = change.new_start, change.new_end, change.old_start, change.old_end
    while True:
        mine, gone = cover(ours, start, end), cover(old, old_start, old_end)
        if mine is None and gone is None:
            return None
        before = max(start - mine.first if mine else 0, old_start - gone.first if gone else 0, 0)
        after = max(mine.last - end if mine else 0, gone.last - old_end if gone else 0, 0)
        if not before and not after:
            break
        start, end, old_start, old_end = start - before, end + after, old_start - before, old_end + after
    if mine and gone and not _same(mine.block, gone.block):
        return None
    return Span(Change(old_start, old_end, start, end), gone, mine)


def _same(a: Block, b: Block) -> bool:
    return outline.same(a.scope, b.scope) and a.chain == b.chain


def slides(old: Sequence[bytes], ours: Sequence[bytes], change: Change) -> Iterator[Change]:
    """All the ways to see an insertion or a deletion that may as well lie some lines higher or lower."""
    yield change
    inserts, deletes = change.old_start == change.old_end, change.new_start == change.new_end
    if not inserts and not deletes:
        return
    lines = ours if inserts else old
    start, end = (change.new_start, change.new_end) if inserts else (change.old_start, change.old_end)

    def by(k: int) -> Change:
        return Change(change.old_start + k, change.old_end + k, change.new_start + k, change.new_end + k)

    k = 1
    while start - k >= 0 and lines[start - k] == lines[end - k]:
        yield by(-k)
        k += 1
    k = 0
    while end + k < len(lines) and lines[start + k] == lines[end + k]:
        k += 1
        yield by(k)
