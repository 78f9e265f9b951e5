"""Whether statements may change places, as far as the names in them tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kunlunfork.rebase.outline import Unit

_LEAVES = ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom | ast.Assert


def commute(some: Sequence[Unit], others: Sequence[Unit]) -> bool:
    """Whether neither writes what the other reads or writes, and neither may leave the block.

    What a call does is not known: it counts as reading and writing what it is called on.
    """
    if all(unit.is_import for unit in (*some, *others)):
        return True
    if not some or not others:
        return True
    nodes = [[node for unit in units for node in unit.nodes] for units in (some, others)]
    if any(isinstance(part, _LEAVES) for side in nodes for node in side for part in ast.walk(node)):
        return False
    (reads, writes), (their_reads, their_writes) = ([set(found) for found in _uses(side)] for side in nodes)
    return not (writes & (their_reads | their_writes) or their_writes & reads)


def _uses(nodes: Sequence[ast.stmt]) -> tuple[list[str], list[str]]:
    reads: list[str] = []
    writes: list[str] = []
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                (reads if isinstance(part.ctx, ast.Load) else writes).append(part.id)
            elif isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
                writes += _root(part)
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                writes += _root(part.func)
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                writes.append(part.name)
            elif isinstance(part, ast.alias):
                writes.append((part.asname or part.name).split(".")[0])
    return reads, writes


def _root(node: ast.expr) -> Iterator[str]:
    """The name at the start of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        yield node.id
