"""Where in the decorators of a function a new one goes, whatever else became of the function."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kunlunfork.rebase import outline
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.outline import Block, Outline, Unit
from kunlunfork.rebase.spans import Span


def decorated(span: Span, change: Change, new: Outline) -> tuple[Block, int] | None:
    """The block that holds the function in the new file, and the line before which inserted decorators go.

    Args:
        span: one function that became one function.
        change: the insertion itself.

    Returns:
        None where the change is another one, or where its place is not told by the decorator before it and the one
        after it (or the ends of the list): both are to be found, or upstream changed one and the other tells.
    """
    if span.mine is None or span.gone is None or len(span.mine.units) != 1 or change.old_start != change.old_end:
        return None
    mine = _decorators(span.mine.units[0])
    lines = range(change.new_start, change.new_end)
    first = next((i for i, (start, _, _) in enumerate(mine) if start == change.new_start), None)
    if first is None:
        return None
    last = first
    while last < len(mine) and mine[last][1] <= lines.stop:
        last += 1
    if last == first or mine[last - 1][1] != lines.stop:
        return None
    found = _same_function(span.mine.units[0], new)
    if found is None:
        return None
    block, unit = found
    theirs = _decorators(unit)
    texts = [text for _, _, text in theirs]
    gaps = set()
    for gap in range(len(theirs) + 1):
        before = "start" if not gap else texts[gap - 1]
        after = "def" if gap == len(theirs) else texts[gap]
        if before == ("start" if not first else mine[first - 1][2]) and texts.count(before) <= 1:
            gaps.add(gap)
        if after == ("def" if last == len(mine) else mine[last][2]) and texts.count(after) <= 1:
            gaps.add(gap)
    if len(gaps) != 1:
        return None
    gap = gaps.pop()
    return block, theirs[gap][0] if gap < len(theirs) else unit.node.lineno - 1


def _decorators(unit: Unit) -> Sequence[tuple[int, int, str]]:
    """First line, line after the last, and what it is, of each decorator."""
    found: list[ast.expr] = getattr(unit.node, "decorator_list", [])
    return [(d.lineno - 1, d.end_lineno or d.lineno, ast.dump(d)) for d in found]


def _same_function(unit: Unit, new: Outline) -> tuple[Block, Unit] | None:
    """The function or class that this one is in the new file, and the block that it is a statement of."""
    if not unit.blocks or unit.blocks[0].scope is None:
        return None
    scope = unit.blocks[0].scope
    found = [
        (block, other)
        for block in new.blocks
        for other in block.units
        if other.blocks and isinstance(other.node, outline.DEF) and outline.same(scope, other.blocks[0].scope)
    ]
    return found[0] if len(found) == 1 else None
