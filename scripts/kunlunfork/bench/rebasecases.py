"""Edits for `bench rebase`: small ones of several kinds, at random in the functions of a release."""

from __future__ import annotations

import ast
import itertools
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MARK = "kunlun_mark"
_Def = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function that its file has once: `path` of the file, its qualified name."""

    path: bytes
    name: str


@dataclass(frozen=True)
class Case:
    """One edit of one file: `old` became `ours`. `inserted` says whether an import is a statement, not a name."""

    kind: str
    function: Function
    old: bytes
    ours: bytes


def parse(source: bytes) -> ast.Module | None:
    """A syntax tree of one's own; None for what is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def functions(tree: ast.Module) -> dict[str, _Def | None]:
    """The functions of a file by qualified name; None for a name that several have."""
    found: dict[str, _Def | None] = {}
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Def | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if isinstance(child, _Def):
                    found[name] = None if name in found else child
                stack.append((child, name))
            else:
                stack.append((child, prefix))
    return found


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """The lists of statements in a function, not those of functions and classes in it."""
    found: list[list[ast.stmt]] = []
    for name, value in ast.iter_fields(node):
        if name == "handlers" or name == "cases":
            found += [block for part in value for block in blocks(part)]
        elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            found.append(value)
            for child in value:
                if not isinstance(child, _Def | ast.ClassDef):
                    found += blocks(child)
    return found


def is_doc(block: Sequence[ast.stmt], at: int) -> bool:
    node = block[at]
    return at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


Maker = Callable[[list[bytes], ast.Module, _Def, random.Random], list[bytes] | None]


def _indent(node: ast.stmt) -> bytes:
    return b" " * node.col_offset


def _span(node: ast.stmt) -> tuple[int, int]:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return first - 1, node.end_lineno or node.lineno


def _statements(node: _Def, *, simple: bool) -> list[tuple[list[ast.stmt], int]]:
    found = []
    for block in blocks(node):
        for at, child in enumerate(block):
            if is_doc(block, at) or (simple and hasattr(child, "body")):
                continue
            found.append((block, at))
    return found


def _insert(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A statement before or after another."""
    places = _statements(node, simple=False)
    if not places:
        return None
    block, at = rng.choice(places)
    first, last = _span(block[at])
    where = rng.choice((first, last))
    return [*lines[:where], b"%s%s = 1\n" % (_indent(block[at]), MARK.encode()), *lines[where:]]


def _replace(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A simple statement becomes another."""
    places = _statements(node, simple=True)
    if not places:
        return None
    block, at = rng.choice(places)
    first, last = _span(block[at])
    return [*lines[:first], b"%s%s = 1\n" % (_indent(block[at]), MARK.encode()), *lines[last:]]


def _delete(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A simple statement goes."""
    places = [(block, at) for block, at in _statements(node, simple=True) if len(block) > 1]
    if not places:
        return None
    block, at = rng.choice(places)
    first, last = _span(block[at])
    return [*lines[:first], *lines[last:]]


def _parameter(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A parameter with a default, the last but for `**kwargs`."""
    args = node.args
    last = [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs][-1:]
    if not last or last[0] is args.vararg:
        return None
    defaults: list[ast.expr] = [*args.defaults, *filter(None, args.kw_defaults)]
    ends: list[ast.arg | ast.expr] = [last[0], *defaults]
    end = max((n.end_lineno or 0, n.end_col_offset or 0) for n in ends)
    row, column = end[0] - 1, end[1]
    line = lines[row]
    rest = line[column:]
    if rest.strip() in (b",", b""):
        if not rest.strip():
            line = line[:column] + b"," + rest
        return [*lines[:row], line, _lead(line) + MARK.encode() + b"=None,\n", *lines[row + 1 :]]
    return [*lines[:row], line[:column] + b", " + MARK.encode() + b"=None" + rest, *lines[row + 1 :]]


def _lead(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip())]


def _decorate(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A decorator above all others or below them."""
    where = rng.choice((_span(node)[0], node.lineno - 1))
    return [*lines[:where], b"%s@%s\n" % (_indent(node), MARK.encode()), *lines[where:]]


def _import(lines: list[bytes], tree: ast.Module, node: _Def, rng: random.Random) -> list[bytes] | None:
    """A name in a `from x import` of the module, or an import of its own after one."""
    found = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    if not found:
        return None
    chosen = rng.choice(found)
    if isinstance(chosen, ast.Import) or rng.random() < 0.5:
        where = chosen.end_lineno or chosen.lineno
        return [*lines[:where], b"import %s\n" % MARK.encode(), *lines[where:]]
    name = rng.choice(chosen.names)
    row, column = (name.end_lineno or 1) - 1, name.end_col_offset or 0
    line = lines[row]
    rest = line[column:]
    if chosen.end_lineno == chosen.lineno or rest.strip() not in (b",", b""):
        return [*lines[:row], line[:column] + b", " + MARK.encode() + rest, *lines[row + 1 :]]
    if not rest.strip():
        line = line[:column] + b"," + rest
    return [*lines[:row], line, _lead(line) + MARK.encode() + b",\n", *lines[row + 1 :]]


KINDS: Mapping[str, Maker] = {
    "insert": _insert,
    "replace": _replace,
    "delete": _delete,
    "parameter": _parameter,
    "decorate": _decorate,
    "import": _import,
}


def make(kind: str, function: Function, old: bytes, rng: random.Random) -> Case | None:
    """An edit of this kind in a function; None where it has no place for one, or the file would not parse."""
    tree = parse(old)
    node = None if tree is None else functions(tree).get(function.name)
    if tree is None or node is None or MARK.encode() in old:
        return None
    lines = [line + b"\n" for line in old.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    made = KINDS[kind](lines, tree, node, rng)
    if made is None:
        return None
    ours = b"".join(made)
    return Case(kind, function, old, ours) if parse(ours) is not None else None


def draw(
    old: Mapping[bytes, bytes], new: Mapping[bytes, bytes], kinds: Sequence[str], count: int, seed: int
) -> list[Case]:
    """`count` edits, as many of each kind, in functions that both releases have: every line is as likely as any other.

    Fewer where the releases do not have as many. The same arguments give the same edits.

    Args:
        old, new: the Python files of the releases, by path.
    """
    rng = random.Random(seed)
    paths = sorted(old.keys() & new.keys())
    sizes = [*itertools.accumulate(len(old[path]) for path in paths)]
    known: dict[bytes, dict[str, int]] = {}
    cases: list[Case] = []
    for _ in range(50 * count):
        if len(cases) == count or not paths:
            break
        path = rng.choices(paths, cum_weights=sizes)[0]
        if path not in known:
            known[path] = _common(old[path], new[path])
        names = known[path]
        if not names:
            continue
        function = Function(path, rng.choices([*names], [*names.values()])[0])
        case = make(kinds[len(cases) % len(kinds)], function, old[path], rng)
        if case is not None:
            cases.append(case)
    return cases


def _common(old: bytes, new: bytes) -> dict[str, int]:
    """The functions that two files have, each once, with their lines in the first."""
    before, after = parse(old), parse(new)
    if before is None or after is None:
        return {}
    theirs = functions(after)
    return {
        name: (node.end_lineno or node.lineno) - node.lineno + 1
        for name, node in sorted(functions(before).items(), key=lambda item: item[0])
        if node is not None and theirs.get(name) is not None
    }
