"""Whether a merged file has the edit where it was made, and nothing else; for `bench rebase`.

It asks the syntax trees alone and shares nothing with the tool's own check: it knows each edit by its marker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kunlunfork.bench.rebasecases import MARK, Case, blocks, functions, is_doc, parse

RIGHT, WRONG, DOUBTFUL = "right", "wrong", "doubtful"
_Def = ast.FunctionDef | ast.AsyncFunctionDef


def verdict(case: Case, new: bytes, result: bytes) -> str:
    """What became of an edit that a tool claims to have made.

    `right`: without the edit the file is upstream's, and the edit is in its function, next to a statement (parameter,
    decorator) that it was next to. `doubtful`: in its function, but what was before and after it are others.
    `wrong`: everything else, a file that does not parse among it.
    """
    trees = [parse(data) for data in (case.old, case.ours, new, result)]
    old, ours, before, after = trees
    if old is None or ours is None or before is None or after is None:
        return WRONG
    judge = {"delete": _delete, "replace": _replace, "parameter": _parameter, "decorate": _decorate,
             "insert": _insert, "import": _import}[case.kind]  # fmt: skip
    return judge(case.function.name, old, ours, before, after)


def _same(a: ast.AST, b: ast.AST) -> bool:
    return ast.dump(a) == ast.dump(b)


def _is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == MARK


def _marks(function: ast.AST) -> list[tuple[list[ast.stmt], int]]:
    return [(block, at) for block in blocks(function) for at, node in enumerate(block) if _is_mark(node)]


def _count(tree: ast.AST) -> int:
    """How often the marker's name is in a tree, in whatever role."""
    found = 0
    for node in ast.walk(tree):
        named = [getattr(node, key, None) for key in ("id", "arg", "name")]
        found += MARK in named
    return found


def _about(node: ast.stmt) -> str:
    """A statement without its blocks: it stays the same one when these change."""
    if isinstance(node, _Def | ast.ClassDef):
        return f"def {node.name}"
    parts = [
        ast.dump(part)
        for name, value in ast.iter_fields(node)
        if name not in ("body", "orelse", "finalbody", "handlers", "cases")
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, ast.AST)
    ]
    return f"{type(node).__name__} {' '.join(parts)}" if hasattr(node, "body") else ast.dump(node)


def _sides(block: Sequence[ast.stmt], first: int, last: int) -> tuple[str, str]:
    """What is before `first` and after `last` in a block, its edges and the place of a docstring included."""
    before = _about(block[first - 1]) if first else "start"
    if first == 1 and is_doc(block, 0):
        before = "docstring"
    return before, _about(block[last + 1]) if last + 1 < len(block) else "end"


def _near(a: tuple[str, str], b: tuple[str, str]) -> str:
    return RIGHT if a[0] == b[0] or a[1] == b[1] else DOUBTFUL


def _mark_in(name: str, ours: ast.Module, after: ast.Module) -> tuple[tuple[str, str], list[ast.stmt], int] | None:
    """The neighbours that the marker had; its block and place in the result, if it is there once, in its function."""
    there, here = functions(after).get(name), functions(ours).get(name)
    if there is None or here is None or _count(after) != 1:
        return None
    mine, theirs = _marks(here), _marks(there)
    if len(mine) != 1 or len(theirs) != 1:
        return None
    block, at = mine[0]
    return _sides(block, at, at), *theirs[0]


def _insert(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    found = _mark_in(name, ours, after)
    if found is None:
        return WRONG
    sides, block, at = found
    answer = _near(sides, _sides(block, at, at))
    del block[at]
    return answer if _same(after, before) else WRONG


def _replace(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    found = _mark_in(name, ours, after)
    here, there = functions(old).get(name), functions(before).get(name)
    if found is None or here is None or there is None:
        return WRONG
    sides, block, at = found
    changed = functions(ours)[name]
    assert changed is not None
    ((own, place),) = _marks(changed)
    original = _twin(here, changed, own)[place]
    theirs = _sides(block, at, at)
    block[at] = original
    if not _same(after, before):
        return WRONG
    return _near(sides, theirs) if _twice(original, here, there) else RIGHT


def _twin(function: ast.AST, other: ast.AST, block: list[ast.stmt]) -> list[ast.stmt]:
    """The block of `function` that `block` is of `other`, which is the same but for one statement."""
    found = [a for a, b in zip(blocks(function), blocks(other), strict=True) if b is block]
    return found[0]


def _twice(node: ast.stmt, *places: ast.AST) -> bool:
    return any(sum(_same(node, child) for b in blocks(p) for child in b) != 1 for p in places)


def _delete(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    here, there = functions(old).get(name), functions(before).get(name)
    if here is None or there is None:
        return WRONG
    gone = next(_removals(here, old, ours), None)
    if gone is None:
        return WRONG
    node, sides = gone
    if _same(before, after):
        # Nothing done: right if upstream deleted it as well, and what was around it has come together.
        where = [(block, at) for block in blocks(there) for at in range(len(block) + 1)]
        met = any(_sides(block, at, at - 1) == sides for block, at in where)
        left, had = (sum(_same(node, child) for block in blocks(f) for child in block) for f in (there, here))
        return RIGHT if not left or (left < had and met) else WRONG
    answers = [theirs for other, theirs in _removals(there, before, after) if _same(node, other)]
    if not answers:
        return WRONG
    if not _twice(node, here, there):
        return RIGHT
    return RIGHT if any(_near(sides, theirs) == RIGHT for theirs in answers) else DOUBTFUL


def _removals(function: ast.AST, tree: ast.Module, result: ast.Module) -> Iterator[tuple[ast.stmt, tuple[str, str]]]:
    """The statements of a function without which a tree is another tree, each with what is around it."""
    goal = ast.dump(result)
    size = len(ast.dump(tree)) - len(goal)
    for block in blocks(function):
        for at, node in enumerate(list(block)):
            # Without its separator a statement is as long as what is missing; all others need no closer look.
            if abs(len(ast.dump(node)) - size) > 2:
                continue
            sides = _sides(block, at, at)
            del block[at]
            fits = ast.dump(tree) == goal
            block.insert(at, node)
            if fits:
                yield node, sides


def _names(function: _Def) -> list[str]:
    """The parameters in order; `*` begins those that are named in calls."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args)]
    names += ["*", *(a.arg for a in args.kwonlyargs)] if args.kwonlyargs or args.vararg else []
    return [*names, *(["**"] if args.kwarg else [])]


def _parameter(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    there, here = functions(after).get(name), functions(ours).get(name)
    if there is None or here is None or _count(after) != 1:
        return WRONG
    mine, theirs = _names(here), _names(there)
    if MARK not in theirs:
        return WRONG
    own, other = mine.index(MARK), theirs.index(MARK)
    sides = [([*names, "end"][at + 1], ["start", *names][at]) for names, at in ((mine, own), (theirs, other))]
    _drop_parameter(there)
    if not _same(after, before):
        return WRONG
    both = set(mine) & set(theirs)
    if both & set(mine[:own]) != both & set(theirs[:other]):
        return WRONG
    return _near(sides[0], sides[1])


def _drop_parameter(function: _Def) -> None:
    args = function.args
    for number, arg in enumerate(args.kwonlyargs):
        if arg.arg == MARK:
            del args.kwonlyargs[number], args.kw_defaults[number]
            return
    positional = [*args.posonlyargs, *args.args]
    number = next(i for i, a in enumerate(positional) if a.arg == MARK)
    for group in (args.posonlyargs, args.args):
        group[:] = [a for a in group if a.arg != MARK]
    del args.defaults[number - len(positional) + len(args.defaults)]


def _decorate(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    there, here = functions(after).get(name), functions(ours).get(name)
    if there is None or here is None or _count(after) != 1:
        return WRONG
    sides = []
    for function in (here, there):
        names = [ast.dump(d) for d in function.decorator_list]
        mark = [i for i, d in enumerate(function.decorator_list) if isinstance(d, ast.Name) and d.id == MARK]
        if not mark:
            return WRONG
        sides.append((["start", *names][mark[0]], [*names, "def"][mark[0] + 1]))
    there.decorator_list[:] = [d for d in there.decorator_list if not (isinstance(d, ast.Name) and d.id == MARK)]
    return _near(sides[0], sides[1]) if _same(after, before) else WRONG


def _import(name: str, old: ast.Module, ours: ast.Module, before: ast.Module, after: ast.Module) -> str:
    """Where among the imports of the module does not matter; which module a name is from does."""
    if _count(after) != 1:
        return WRONG
    origin = []
    for tree in (ours, after):
        for node in list(tree.body):
            if isinstance(node, ast.Import | ast.ImportFrom) and any(a.name == MARK for a in node.names):
                origin.append((type(node), getattr(node, "module", None), getattr(node, "level", None)))
                node.names[:] = [a for a in node.names if a.name != MARK]
                if not node.names:
                    tree.body.remove(node)
    return RIGHT if len(origin) == 2 and origin[0] == origin[1] and _same(after, before) else WRONG
