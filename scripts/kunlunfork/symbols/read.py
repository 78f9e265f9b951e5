"""Reads a Python file into `Facts`; nothing of it is imported or run."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Sequence

from kunlunfork import scopes
from kunlunfork.errors import ForkError
from kunlunfork.symbols import canon, comments
from kunlunfork.symbols.facts import Attribute, Call, Class, Constant, Facts, Function, Import, Parameter
from kunlunfork.symbols.slices import Slices

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Shapes = dict[int, tuple[str, bool]]
_LONGEST = 400
# Nobody asks what is passed to these.
_NOT_OURS = frozenset({*dir(builtins), "torch", "np", "math", "tl", "logger", "F"})
_TARGET = re.compile(r"[A-Za-z_.][\w.]*:[A-Za-z_]\w*")


def read(source: bytes) -> Facts:
    """The facts of a file; one that does not parse has a `fault` and nothing else."""
    try:
        tree = scopes.parse(source, where="a file")
    except ForkError as e:
        return Facts(fault=e.found or e.message)
    try:
        return _Reader(source, tree).facts()
    except RecursionError:
        return Facts(fault="nested too deep")


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text; '' for what is no chain of names. Calls and subscripts on the way are `()` and `[]`."""
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
            node = node.value
        elif isinstance(node, ast.Call):
            parts.append("()")
            node = node.func
        elif isinstance(node, ast.Subscript):
            parts.append("[]")
            node = node.value
        else:
            return ""
    return node.id + "".join(reversed(parts))


class _Reader:
    def __init__(self, source: bytes, tree: ast.Module) -> None:
        self._tree = tree
        self._shapes: _Shapes = comments.shapes(source, tree)
        self._functions: dict[str, Function] = {}
        self._classes: dict[str, Class] = {}
        self._constants: dict[str, Constant] = {}
        self._imports: list[Import] = []
        self._exports: list[str] | None = None

    def facts(self) -> Facts:
        self._block(self._tree.body, "", typing=False)
        exports = None if self._exports is None else tuple(self._exports)
        return Facts(
            self._functions, self._classes, self._constants, tuple(self._imports), exports, self._lazy()
        )  # fmt: skip

    # -- the module

    def _block(self, body: Sequence[ast.stmt], top: str, *, typing: bool) -> None:
        for node in body:
            if isinstance(node, _Function):
                self._add_function(node, top)
            elif isinstance(node, ast.ClassDef):
                self._add_class(node, top)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._imports += _imports(node, "", typing)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                if not top:
                    self._assign(node)
            else:
                inner = typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in dotted(node.test))
                for name, value in ast.iter_fields(node):
                    if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                        self._block(value, top, typing=inner and name == "body")
                    elif name in ("handlers", "cases"):
                        for part in value:
                            self._block(part.body, top, typing=False)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                if name == "__all__":
                    self._export(node)
                    continue
                was = self._constants.get(name)
                value = canon.text(node.value) if node.value is not None else ""
                # One of several that a condition chooses from, or one that is made step by step.
                value = canon.digest(f"{was.value if was else ''}{type(node).__name__}{value}")
                text = "" if node.value is None else _source(node.value)
                note = _source(node.annotation) if isinstance(node, ast.AnnAssign) else ""
                end = node.end_lineno or node.lineno
                self._constants[name] = Constant(name, was.line if was else node.lineno, end, value, text, note)

    def _export(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if not isinstance(node, ast.AugAssign):
            self._exports = []
        value = node.value
        names = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant)] if value is not None else []
        self._exports = [*(self._exports or []), *(n for n in names if isinstance(n, str))]

    def _lazy(self) -> dict[str, str]:
        if "__getattr__" not in self._functions:
            return {}
        found = {}
        for node in self._tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            for key, target in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    text = target.value if isinstance(target, ast.Constant) else None
                    if isinstance(text, str) and _TARGET.fullmatch(text):
                        found[key.value] = text
        return found

    # -- functions

    def _add_function(self, node: _Function, top: str) -> None:
        name = f"{top}.{node.name}" if top else node.name
        made = self._function(node, name)
        was = self._functions.get(name)
        if was is not None and not any(d.endswith((".setter", ".deleter", "overload")) for d in made.decorators):
            # Defined twice, under a condition or after an overload: both count.
            made = _both(was, made)
        elif was is not None:
            made = _both(made, was)
        self._functions[name] = made

    def _function(self, node: _Function, name: str) -> Function:
        slices = Slices(node)
        nested = list(_walk(node.body))
        self._imports += [i for n in nested if isinstance(n, ast.Import | ast.ImportFrom) for i in _imports(n, name)]
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        end = node.end_lineno or node.lineno
        body = canon.without_docstring(node.body)
        decorators = tuple(_source(d) for d in node.decorator_list)
        local = canon.names_of(node)
        mine = local.own | local.given
        return Function(
            name, first, end, tuple(_parameters(node.args)), "" if node.returns is None else _source(node.returns),
            decorators, canon.digest(canon.Canon().body(node)),
            tuple(self._shapes[line][0] for line in range(first, end + 1) if line in self._shapes),
            tuple(_calls(nested, slices)), tuple(sorted(_refs(nested, mine))), tuple(_locals(nested)),
            _is_abstract(body, decorators),
        )  # fmt: skip

    # -- classes

    def _add_class(self, node: ast.ClassDef, top: str) -> None:
        name = f"{top}.{node.name}" if top else node.name
        self._block(node.body, name, typing=False)
        attributes: dict[str, Attribute] = {}
        for part in node.body:
            targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
            for target in targets if isinstance(part, ast.Assign | ast.AnnAssign) else ():
                if isinstance(target, ast.Name):
                    attributes[target.id] = self._field(part, target.id)
        for method in (n for n in node.body if isinstance(n, _Function)):
            self._set_on_self(method, attributes)
        methods = tuple(dict.fromkeys(n.name for n in _inside(node) if isinstance(n, _Function)))
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        bases = tuple(_source(b) for b in (*node.bases, *(k.value for k in node.keywords)))
        self._classes[name] = Class(
            name, first, node.end_lineno or node.lineno, bases, tuple(_source(d) for d in node.decorator_list),
            canon.digest(canon.text(node)), methods, tuple(attributes.values()),
        )  # fmt: skip

    def _field(self, node: ast.stmt, name: str) -> Attribute:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        note = _source(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        values = () if node.value is None else (canon.digest(canon.text(node.value)),)
        lines = list(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        above = node.lineno - 1
        while above in self._shapes and self._shapes[above][1]:
            lines.insert(0, above)
            above -= 1
        shapes = tuple(self._shapes[line][0] for line in lines if line in self._shapes)
        return Attribute(name, node.lineno, note, values, (), shapes, declared=True)

    def _set_on_self(self, method: _Function, attributes: dict[str, Attribute]) -> None:
        arguments = [*method.args.posonlyargs, *method.args.args]
        if not arguments:
            return
        me = arguments[0].arg
        slices: Slices | None = None
        notes = {a.arg: _source(a.annotation) for a in canon.parameters(method.args) if a.annotation is not None}
        for node in _walk(method.body):
            pairs: list[tuple[ast.expr, ast.expr | None, str]] = []
            if isinstance(node, ast.Assign):
                pairs = [(t, node.value, "") for t in node.targets]
            elif isinstance(node, ast.AnnAssign):
                pairs = [(node.target, node.value, _source(node.annotation))]
            for target, value, note in pairs:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if not (isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)):
                        continue
                    if each.value.id != me:
                        continue
                    slices = slices or Slices(method)
                    line = each.lineno
                    was = attributes.get(each.attr, Attribute(each.attr, line))
                    made = [] if value is None else [slices.argument(value)]
                    kinds = [] if value is None else [_kind(value, notes)]
                    shapes = [self._shapes[line][0]] if line in self._shapes else []
                    attributes[each.attr] = Attribute(
                        each.attr, was.line, was.annotation or note, (*was.values, *made),
                        (*was.kinds, *(k for k in kinds if k and k not in was.kinds)), (*was.shapes, *shapes),
                        was.declared,
                    )  # fmt: skip


def _kind(value: ast.expr, notes: dict[str, str]) -> str:
    """What makes a value: `call X`, `is X`, `type X`; '' where it does not show."""
    if isinstance(value, ast.Call) and (name := dotted(value.func)):
        return f"call {name}"
    if isinstance(value, ast.Name) and value.id in notes:
        return f"type {notes[value.id]}"
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) and (name := dotted(value)):
        return f"is {name}"
    if isinstance(value, ast.IfExp):
        return _kind(value.body, notes) or _kind(value.orelse, notes)
    return ""


def _both(first: Function, second: Function) -> Function:
    from dataclasses import replace

    return replace(
        second, body=canon.digest(first.body + second.body), calls=first.calls + second.calls,
        refs=tuple(sorted({*first.refs, *second.refs})), shapes=first.shapes + second.shapes,
    )  # fmt: skip


def _inside(node: ast.ClassDef) -> Iterator[ast.stmt]:
    """The statements of a class body, those under conditions too."""
    todo: list[ast.stmt] = list(node.body)
    while todo:
        part = todo.pop(0)
        yield part
        if isinstance(part, ast.If | ast.Try | ast.With):
            todo += [n for n in ast.iter_child_nodes(part) if isinstance(n, ast.stmt)]


def _walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node, in the order of the source."""
    todo = list(reversed(list(body)))
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(list(ast.iter_child_nodes(node)))


def _source(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else f"{text[:60]}...{canon.digest(canon.text(node))}"


def _parameters(args: ast.arguments) -> Iterator[Parameter]:
    def made(arg: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
        note = "" if arg.annotation is None else _source(arg.annotation)
        return Parameter(arg.arg, kind, note, "" if default is None else _source(default))

    plain = [(a, "positional") for a in args.posonlyargs] + [(a, "any") for a in args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    for (arg, kind), default in zip(plain, [*defaults, *args.defaults], strict=True):
        yield made(arg, kind, default)
    if args.vararg is not None:
        yield made(args.vararg, "*", None)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield made(arg, "keyword", default)
    if args.kwarg is not None:
        yield made(args.kwarg, "**", None)


def _calls(nodes: Iterable[ast.AST], slices: Slices) -> Iterator[Call]:
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        launch = isinstance(node.func, ast.Subscript)
        name = dotted(node.func.value if isinstance(node.func, ast.Subscript) else node.func)
        if not name or name.split(".")[0] in _NOT_OURS:
            continue
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        named = [k for k in node.keywords if k.arg is not None]
        star = len(plain) < len(node.args) or len(named) < len(node.keywords)
        yield Call(
            name, node.lineno, tuple(slices.argument(a) for a in node.args),
            tuple((k.arg or "", slices.argument(k.value)) for k in named), star, launch,
        )  # fmt: skip


def _refs(nodes: Iterable[ast.AST], local: frozenset[str]) -> set[str]:
    found = set()
    inner: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            part: ast.AST = node
            while isinstance(part, ast.Attribute):
                part = part.value
                inner.add(id(part))
            name = dotted(node)
            if name and "(" not in name and "[" not in name and name.split(".")[0] not in local:
                found.add(name)
    return found


def _locals(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, f"type {_source(node.annotation)}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            kind = _kind(node.value, {})
            if kind:
                yield node.targets[0].id, kind


def _is_abstract(body: Sequence[ast.stmt], decorators: Sequence[str]) -> bool:
    if any("abstractmethod" in d for d in decorators):
        return True
    only = body[0] if len(body) == 1 else None
    return isinstance(only, ast.Raise) and only.exc is not None and "NotImplementedError" in dotted(only.exc)


def _imports(node: ast.Import | ast.ImportFrom, where: str, typing: bool = False) -> Iterator[Import]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            module = alias.name if alias.asname else alias.name.split(".")[0]
            yield Import(alias.asname or module, module, "", where, typing)
            if not alias.asname and "." in alias.name:
                yield Import("", alias.name, "", where, typing)  # binds no name of its own, but has to be there
        else:
            module = "." * node.level + (node.module or "")
            yield Import(alias.asname or alias.name, module, alias.name, where, typing)
