"""A Python file as scopes, blocks and statements, each with its lines; nothing is run."""

from __future__ import annotations

import ast
import functools
import gc
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kunlunfork import scopes
from kunlunfork.errors import ForkError
from kunlunfork.rebase import linediff

# except* came with Python 3.11.
_TRY: tuple[type[ast.Try], ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))
_Def = ast.FunctionDef | ast.AsyncFunctionDef
DEF = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, eq=False)
class Scope:
    """A function or class; the module is None.

    `index` counts those of the same name in the same scope (overloads, a property and its setter, both branches of an
    `if`), `twins` are all of them.
    """

    name: str
    node: _Def | ast.ClassDef
    parent: Scope | None
    index: int
    twins: tuple[_Def | ast.ClassDef, ...]

    @property
    def qualified(self) -> str:
        return self.name if self.parent is None else f"{self.parent.qualified}.{self.name}"


@dataclass(frozen=True, eq=False)
class Unit:
    """A statement, or several on one line, of a block. Lines count from 0; `last` is exclusive; decorators are in."""

    nodes: tuple[ast.stmt, ...]
    first: int
    last: int
    is_doc: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def node(self) -> ast.stmt:
        return self.nodes[0]

    @functools.cached_property
    def whole(self) -> str:
        """All of it, without comments and layout."""
        return "\n".join(map(ast.dump, self.nodes))

    @functools.cached_property
    def head(self) -> str | None:
        """What names it whatever its blocks hold: 'if' and its test, 'def' and its name; None where nothing does."""
        if self.is_doc:
            return "docstring"
        if isinstance(self.node, _Def | ast.ClassDef):
            return f"def {self.node.name}"
        if not self.blocks or isinstance(self.node, _TRY):
            return None
        return self.blocks[0].chain[-1]

    @property
    def is_import(self) -> bool:
        """Whether it may come before or after other imports: all but `from __future__` and `import *`."""
        return all(
            isinstance(node, ast.Import | ast.ImportFrom)
            and getattr(node, "module", None) != "__future__"
            and node.names[0].name != "*"
            for node in self.nodes
        )

    @property
    def label(self) -> str:
        """What it is, and what it gives a value to or calls: for an edit in the middle of a long one."""
        if self.is_doc:
            return "docstring"
        node = self.node
        name = type(node).__name__
        if isinstance(node, ast.Assign):
            return f"{name} {', '.join(map(ast.dump, node.targets))}"
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            return f"{name} {ast.dump(node.target)}"
        if isinstance(node, ast.ImportFrom):
            return f"{name} {'.' * node.level}{node.module or ''}"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return f"{name} {ast.dump(node.value.func)}"
        if isinstance(node, _Def | ast.ClassDef):
            return f"def {node.name}"
        return name


@dataclass(frozen=True, eq=False)
class Clause:
    """What a block hangs on in its compound statement: 'for' with target and iterable, 'else' with what it is of."""

    kind: str
    of: str
    nodes: tuple[ast.AST, ...]

    @functools.cached_property
    def header(self) -> str:
        """All of it, without comments and layout."""
        return " ".join([self.kind, self.of, *map(ast.dump, self.nodes)])


@dataclass(frozen=True, eq=False)
class Block:
    """The statements of one indentation; `clauses` are those around it in its scope, outermost first."""

    scope: Scope | None
    clauses: tuple[Clause, ...]
    units: list[Unit] = field(default_factory=list)

    @functools.cached_property
    def chain(self) -> tuple[str, ...]:
        """The headers of all that is around it in its scope, outermost first."""
        return tuple(clause.header for clause in self.clauses)

    @functools.cached_property
    def starts(self) -> list[int]:
        """The first line of each statement; asked for when all are there."""
        return [unit.first for unit in self.units]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(clause.kind for clause in self.clauses)

    @property
    def first(self) -> int:
        return self.units[0].first

    @property
    def last(self) -> int:
        return self.units[-1].last

    @property
    def indent(self) -> int:
        node = self.units[0].node
        return node.col_offset


@dataclass(frozen=True)
class Place:
    """Where a line lies: `unit` is None for blank lines and comments of `block`.

    `part` is 'simple' for a statement without blocks, else 'decorator', 'head' or, for `else:` and its like, 'clause'.
    """

    block: Block
    unit: Unit | None
    part: str

    @property
    def scope(self) -> Scope | None:
        """The function or class; the head of one, with its decorators, belongs to it."""
        if self.unit is not None and isinstance(self.unit.node, DEF) and self.unit.blocks:
            return self.unit.blocks[0].scope
        return self.block.scope


class Outline:
    """What a file consists of."""

    def __init__(self, source: bytes) -> None:
        tree = scopes.parse(source, where="a Python file")
        self.lines = linediff.cut(source)
        self.blocks: list[Block] = []
        self.module = self._block(tree.body, None, (), is_body=True)
        self._descend()

    def _block(
        self, body: Sequence[ast.stmt], scope: Scope | None, clauses: tuple[Clause, ...], *, is_body: bool
    ) -> Block:
        block = Block(scope, clauses)
        self.blocks.append(block)
        for number, group in enumerate(_groups(body)):
            first = min([group[0].lineno, *(d.lineno for d in getattr(group[0], "decorator_list", ()))]) - 1
            last = max(node.end_lineno or node.lineno for node in group)
            unit = Unit(group, first, last, is_body and number == 0 and _is_doc(group[0]))
            block.units.append(unit)
        return block

    def _descend(self) -> None:
        """Fill in the blocks inside of statements."""
        waiting: list[tuple[Block, dict[str, list[_Def | ast.ClassDef]]]] = [(self.module, _names(self.module))]
        while waiting:
            block, names = waiting.pop()
            for unit in block.units:
                if len(unit.nodes) > 1 or not _has_lines_of_its_own(unit.node, self.lines):
                    continue
                node = unit.node
                if isinstance(node, _Def | ast.ClassDef):
                    twins = names[node.name]
                    scope = Scope(node.name, node, block.scope, [*map(id, twins)].index(id(node)), tuple(twins))
                    inner = self._block(node.body, scope, (), is_body=True)
                    unit.blocks.append(inner)
                    waiting.append((inner, _names(inner)))
                    continue
                for clause, body in _clauses(node):
                    inner = self._block(body, block.scope, (*block.clauses, clause), is_body=False)
                    unit.blocks.append(inner)
                    waiting.append((inner, names))

    def place(self, line: int) -> Place:
        """Where a line lies, innermost."""
        block = self.module
        while True:
            at = bisect_right(block.starts, line) - 1
            unit = block.units[at] if at >= 0 else None
            if unit is None or line >= unit.last:
                return Place(block, None, "")
            if not unit.blocks:
                return Place(block, unit, "simple")
            # Comments after the last statement of an inner block belong to none: they are at its end.
            inner = next((b for b in unit.blocks if b.first <= line < b.last), None)
            if inner is None:
                return Place(block, unit, _part(unit, line))
            block = inner


def _part(unit: Unit, line: int) -> str:
    if line >= unit.blocks[0].first:
        return "clause"
    return "decorator" if line < unit.node.lineno - 1 else "head"


def decorator(unit: Unit, line: int) -> str:
    """The decorator on a line, without comments and layout."""
    decorators: list[ast.expr] = getattr(unit.node, "decorator_list", [])
    return next((ast.dump(d) for d in decorators if d.lineno <= line + 1 <= (d.end_lineno or d.lineno)), "")


def _groups(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, ...]]:
    """Statements, those that share a line taken together."""
    group: list[ast.stmt] = []
    for node in body:
        if group and node.lineno > (group[-1].end_lineno or 0):
            yield tuple(group)
            group = []
        group.append(node)
    if group:
        yield tuple(group)


def _is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _names(block: Block) -> dict[str, list[_Def | ast.ClassDef]]:
    """The functions and classes of a scope by name, also those inside of `if` and its like."""
    found: dict[str, list[_Def | ast.ClassDef]] = {}
    stack: list[ast.stmt] = [node for unit in reversed(block.units) for node in reversed(unit.nodes)]
    while stack:
        node = stack.pop()
        if isinstance(node, _Def | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        else:
            inner = [child for _, body in _clauses(node) for child in body]
            stack += reversed(inner)
    return found


def _has_lines_of_its_own(node: ast.stmt, lines: Sequence[bytes]) -> bool:
    """Whether a statement has blocks, and each of them begins on a line of its own."""
    bodies = [body for _, body in _clauses(node)]
    if isinstance(node, _Def | ast.ClassDef):
        bodies = [node.body]
    return bool(bodies) and all(not lines[b[0].lineno - 1][: b[0].col_offset].strip() for b in bodies)


def _clauses(node: ast.stmt) -> Iterator[tuple[Clause, list[ast.stmt]]]:
    """The blocks of a compound statement that is no def."""
    if isinstance(node, ast.If):
        kind = "if"
        while True:
            yield Clause(kind, "", (node.test,)), node.body
            rest = node.orelse
            if len(rest) == 1 and isinstance(rest[0], ast.If) and rest[0].col_offset == node.col_offset:
                kind, node = "elif", rest[0]
                continue
            if rest:
                yield Clause("else", "if", (node.test,)), rest
            return
    if isinstance(node, ast.For | ast.AsyncFor):
        yield Clause("for", "", (node.target, node.iter)), node.body
        if node.orelse:
            yield Clause("else", "for", (node.target, node.iter)), node.orelse
    elif isinstance(node, ast.While):
        yield Clause("while", "", (node.test,)), node.body
        if node.orelse:
            yield Clause("else", "while", (node.test,)), node.orelse
    elif isinstance(node, ast.With | ast.AsyncWith):
        yield Clause("with", "", tuple(node.items)), node.body
    elif isinstance(node, ast.Match):
        for case in node.cases:
            parts = (node.subject, case.pattern, *([case.guard] if case.guard else []))
            yield Clause("case", "", parts), case.body
    elif isinstance(node, _TRY):
        yield Clause("try", "", ()), node.body
        for handler in node.handlers:
            yield Clause("except", handler.name or "", (handler.type,) if handler.type else ()), handler.body
        if node.orelse:
            yield Clause("else", "try", ()), node.orelse
        if node.finalbody:
            yield Clause("finally", "", ()), node.finalbody


@functools.lru_cache(maxsize=32)
def read(source: bytes) -> Outline | None:
    """The outline of a file; None where it does not parse, or where Python and git do not see the same lines."""
    if b"\r" in source.replace(b"\r\n", b"") or b"\0" in source:
        return None
    # A syntax tree is a hundred thousand new objects and no garbage: collecting meanwhile takes two thirds of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Outline(source)
    except (ForkError, RecursionError):
        return None
    finally:
        if collecting:
            gc.enable()


def same(a: Scope | None, b: Scope | None) -> bool:
    """Whether two scopes, of two files, are the same function or class."""
    if a is None or b is None:
        return a is b
    if a.name != b.name or isinstance(a.node, ast.ClassDef) != isinstance(b.node, ast.ClassDef):
        return False
    return same(a.parent, b.parent) and _same_twin(a, b)


def _same_twin(a: Scope, b: Scope) -> bool:
    if len(a.twins) == len(b.twins) == 1:
        return True
    mine, theirs = [signature(n) for n in a.twins], [signature(n) for n in b.twins]
    own = mine[a.index]
    if mine.count(own) == 1 and theirs.count(own) == 1:
        return theirs[b.index] == own
    if len(mine) != len(theirs) or a.index != b.index:
        return False
    # Same number, same place: the same one, unless it now looks like another one did.
    return theirs[b.index] == own or (own not in theirs and theirs[b.index] not in mine)


def signature(node: _Def | ast.ClassDef) -> str:
    """Decorators and parameters, or bases."""
    parts: list[ast.AST] = [*node.decorator_list]
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *node.keywords]
    else:
        parts += [node.args, *([node.returns] if node.returns else [])]
    return "|".join(map(ast.dump, parts))
