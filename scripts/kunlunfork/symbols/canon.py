"""Code as text that is the same wherever it means the same: on every Python that we run on, whatever the comments,
docstrings, formatting, and whatever its local variables are called.

`ast.dump` and `ast.unparse` differ between releases of Python, and fingerprints are kept in files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

_Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = _Function | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Of no meaning, or not there in every Python.
_LEFT_OUT = frozenset({"ctx", "type_comment", "type_ignores", "kind", "type_params", "lineno", "col_offset"})


def digest(text: str) -> str:
    """A fingerprint: 16 hex digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that do something: strings that stand alone do not, wherever they are."""
    return [node for node in body if not is_docstring(node)] or [ast.Pass()]


def parameters(args: ast.arguments) -> Iterator[ast.arg]:
    yield from (*args.posonlyargs, *args.args)
    if args.vararg is not None:
        yield args.vararg
    yield from args.kwonlyargs
    if args.kwarg is not None:
        yield args.kwarg


def bound_names(scope: Scope) -> Iterator[str]:
    """The names that a function, lambda or comprehension binds, but for its parameters; some several times."""
    outer: set[str] = set()
    found: list[str] = []
    todo: list[ast.AST]
    if isinstance(scope, _COMPREHENSIONS):
        todo = [generator.target for generator in scope.generators]
    else:
        todo = list(scope.body) if isinstance(scope.body, list) else [scope.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store | ast.Del):
                found.append(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.append(node.name)
        elif isinstance(node, ast.alias):
            found.append((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            found.append(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.append(node.rest)
        if isinstance(node, _Function | ast.ClassDef):
            found.append(node.name)
            todo += [*node.decorator_list, *_outside(node)]
        elif isinstance(node, ast.Lambda):
            todo += _outside(node)
        elif isinstance(node, _COMPREHENSIONS):
            # A walrus inside binds out here.
            walrus = (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            found += [target.id for target in walrus]
        else:
            todo += ast.iter_child_nodes(node)
    return (name for name in found if name not in outer)


def _outside(node: _Function | ast.ClassDef | ast.Lambda) -> list[ast.AST]:
    """What of a definition is evaluated around it."""
    if isinstance(node, ast.ClassDef):
        return [*node.bases, *(k.value for k in node.keywords)]
    return [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]


@dataclass
class Names:
    """A scope: its parameters, which are written by name (callers may use it), its locals, and their numbers."""

    given: frozenset[str]
    own: frozenset[str]
    numbers: dict[str, int] = field(default_factory=dict)


def names_of(scope: Scope) -> Names:
    """A new scope for a function, lambda or comprehension."""
    # Each function is written several times, and this is the dearest part of it: the node remembers.
    known: tuple[frozenset[str], frozenset[str]] | None = getattr(scope, "_kunlunfork_names", None)
    if known is None:
        of = frozenset() if isinstance(scope, _COMPREHENSIONS) else frozenset(a.arg for a in parameters(scope.args))
        known = of, frozenset(bound_names(scope)) - of
        scope._kunlunfork_names = known  # type: ignore[union-attr]
    return Names(*known)


class Canon:
    """Writes nodes of one function as text; locals get numbers in the order in which they are met."""

    def __init__(self, *scopes: Names) -> None:
        self.scopes = list(scopes)
        self.count = 0

    def text(self, node: object) -> str:
        if isinstance(node, ast.AST):
            special = getattr(self, f"_{type(node).__name__}", None)
            found: str = special(node) if special is not None else self._plain(node)
            return found
        if isinstance(node, list):
            return f"[{','.join(self.text(each) for each in node)}]"
        return repr(node)

    def _plain(self, node: ast.AST) -> str:
        parts = [
            f"{name}={self.text(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _LEFT_OUT and value is not None and value != []
        ]
        return f"{type(node).__name__}({','.join(parts)})"

    def _named(self, name: str) -> str:
        for depth in range(len(self.scopes) - 1, -1, -1):
            scope = self.scopes[depth]
            if name in scope.given:
                return name
            if name in scope.own:
                return self.local(depth, name)
        return name

    def local(self, depth: int, name: str) -> str:
        numbers = self.scopes[depth].numbers
        if name not in numbers:
            numbers[name] = self.count
            self.count += 1
        return f"${numbers[name]}"

    def _Name(self, node: ast.Name) -> str:
        return self._named(node.id)

    def _Constant(self, node: ast.Constant) -> str:
        return repr(node.value)

    def _JoinedStr(self, node: ast.JoinedStr) -> str:
        # Where its plain parts are cut depends on the Python.
        parts: list[str] = []
        plain = ""
        for value in node.values:
            if isinstance(value, ast.Constant):
                plain += str(value.value)
                continue
            parts += [repr(plain)] * bool(plain) + [self.text(value)]
            plain = ""
        return f"f({','.join(parts + [repr(plain)] * bool(plain))})"

    def _AnnAssign(self, node: ast.AnnAssign) -> str:
        if isinstance(node.target, ast.Name) and self.scopes:
            # Nobody evaluates the annotation of a local.
            return "Pass()" if node.value is None else f"Assign({self.text([node.target])},{self.text(node.value)})"
        return self._plain(node)

    def _Assign(self, node: ast.Assign) -> str:
        return f"Assign({self.text(node.targets)},{self.text(node.value)})"

    def _ExceptHandler(self, node: ast.ExceptHandler) -> str:
        name = None if node.name is None else self._named(node.name)
        return f"except({self.text(node.type)},{name},{self.text(without_docstring(node.body))})"

    def _alias(self, node: ast.alias) -> str:
        bound = self._named((node.asname or node.name).split(".")[0])
        return f"{node.name} as {bound}"

    def _Global(self, node: ast.Global | ast.Nonlocal) -> str:
        return f"{type(node).__name__}({','.join(self._named(name) for name in node.names)})"

    _Nonlocal = _Global

    def _MatchAs(self, node: ast.MatchAs) -> str:
        return f"as({self.text(node.pattern)},{node.name and self._named(node.name)})"

    def _MatchStar(self, node: ast.MatchStar) -> str:
        return f"star({node.name and self._named(node.name)})"

    def _FunctionDef(self, node: _Function) -> str:
        before = f"{type(node).__name__}({self._named(node.name)},{self.text(node.decorator_list)}"
        defaults = self.text([*node.args.defaults, *node.args.kw_defaults])
        return f"{before},{_shape(node.args)},{defaults},{self.body(node)})"

    _AsyncFunctionDef = _FunctionDef

    def _Lambda(self, node: ast.Lambda) -> str:
        defaults = self.text([*node.args.defaults, *node.args.kw_defaults])
        return f"lambda({_shape(node.args)},{defaults},{self.body(node)})"

    def _ClassDef(self, node: ast.ClassDef) -> str:
        head = [self._named(node.name), self.text(node.decorator_list), self.text(node.bases), self.text(node.keywords)]
        return f"class({','.join(head)},{self.text(without_docstring(node.body))})"

    def _of_a_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> str:
        self.scopes.append(names_of(node))
        try:
            # The targets first, as they are bound first.
            parts = [self.text(node.generators)]
            parts += [self.text(getattr(node, name)) for name in ("key", "value", "elt") if hasattr(node, name)]
            return f"{type(node).__name__}({','.join(parts)})"
        finally:
            self.scopes.pop()

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _of_a_comprehension

    def body(self, node: _Function | ast.Lambda) -> str:
        """What a function does, in a scope of its own."""
        self.scopes.append(names_of(node))
        try:
            return self.text(without_docstring(node.body) if isinstance(node.body, list) else node.body)
        finally:
            self.scopes.pop()


def _shape(args: ast.arguments) -> str:
    counts = (len(args.posonlyargs), len(args.args), bool(args.vararg), len(args.kwonlyargs), bool(args.kwarg))
    names = ",".join(arg.arg for arg in parameters(args))
    return f"{counts}:{names}:{len(args.defaults)}"


def text(node: ast.AST) -> str:
    """A node outside every function."""
    return Canon().text(node)
