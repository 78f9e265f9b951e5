"""Expressions of a program that is read, not run; what the facts do not decide is a Ref with the expression's text."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from kunlunfork.doctor.values import PRESENT, Gathered, Ref, Value, compare, truth


@dataclass(frozen=True)
class Test:
    """One test on the way to an outcome; `assumed`: the facts did not decide it."""

    line: int
    text: str
    value: bool
    assumed: bool


@dataclass
class Path:
    names: dict[str, Value] = field(default_factory=dict)
    tests: tuple[Test, ...] = ()
    # The undecided tests around a branch that is walked for what it gathers.
    maybe: tuple[str, ...] = ()

    def fork(self, test: Test) -> Path:
        names = {n: v.copy() if isinstance(v, Gathered) else v for n, v in self.names.items()}
        return Path(names, (*self.tests, test), self.maybe)


class Expressions:
    """Values of the expressions in the methods of one class."""

    module: ast.Module
    facts: Mapping[str, Value]
    methods: Mapping[str, ast.FunctionDef]

    def has(self, method: str) -> bool:
        return method in self.methods

    def _text(self, node: ast.expr, path: Path, whole: ast.expr | None = None) -> str:
        """A message for people: what is not known of it stays as it is written."""
        if isinstance(node, ast.JoinedStr):
            return "".join(self._part(part, path) for part in node.values)
        value = self._value(node, path)
        return value if isinstance(value, str) else ast.unparse(whole or node)

    # Expressions; what is not decided is a Ref with the text of the expression.

    def _value(self, node: ast.expr, path: Path) -> Value:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                return path.names[name] if name in path.names else self._global(name)
            case ast.Attribute():
                return self._attribute(self._value(node.value, path), node.attr, node)
            case ast.BoolOp():
                return self._bool_op(node, path)
            case ast.UnaryOp(op=ast.Not()):
                decided = truth(self._value(node.operand, path), self.facts)
                return Ref(ast.unparse(node)) if decided is None else not decided
            case ast.Compare(ops=[op], comparators=[right]):
                found = compare(op, self._value(node.left, path), self._value(right, path), self.facts)
                return Ref(ast.unparse(node)) if found is None else found
            case ast.List(elts=[]):
                return Gathered()
            case ast.Tuple() | ast.List() | ast.Set():
                return self._items(node, path)
            case ast.JoinedStr():
                parts = [self._value(p.value, path) for p in node.values if isinstance(p, ast.FormattedValue)]
                if not any(isinstance(p, Ref | Gathered | tuple) for p in parts) and not _formats(node):
                    return self._text(node, path)
            case ast.IfExp():
                decided = truth(self._value(node.test, path), self.facts)
                if decided is not None:
                    return self._value(node.body if decided else node.orelse, path)
            case ast.Call():
                return self._call(node, path)
        return Ref(ast.unparse(node))

    def _items(self, node: ast.Tuple | ast.List | ast.Set, path: Path) -> Value:
        values = [self._value(item, path) for item in node.elts]
        if any(isinstance(v, Ref | Gathered) for v in values):
            return Ref(ast.unparse(node))
        return tuple(values)

    def _global(self, name: str) -> Value:
        if name in self.facts:
            return self._known(name)
        for node in reversed(self.module.body):
            match node:
                case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if (
                    found == name and node.value is not None
                ):
                    return _literal(node.value, name)
        return Ref(name)

    def _known(self, name: str) -> Value:
        value = self.facts.get(name, PRESENT)
        return Ref(name) if value is PRESENT else value

    def _attribute(self, value: Value, name: str, node: ast.expr) -> Value:
        if not isinstance(value, Ref):
            return Ref(ast.unparse(node))
        dotted = f"{value.text}.{name}"
        if value.text == "self" and dotted not in self.facts and self._is_property(name):
            return self._method(name)
        return self._known(dotted)

    def _is_property(self, name: str) -> bool:
        decorators = self.methods[name].decorator_list if name in self.methods else []
        return any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in decorators)

    def _method(self, name: str) -> Value:
        raise NotImplementedError

    def _bool_op(self, node: ast.BoolOp, path: Path) -> Value:
        stops = isinstance(node.op, ast.Or)
        unknown = False
        value: Value = None
        for operand in node.values:
            value = self._value(operand, path)
            decided = truth(value, self.facts)
            if decided is stops:
                return stops if unknown else value
            unknown |= decided is None
        return Ref(ast.unparse(node)) if unknown else value

    def _part(self, part: ast.expr, path: Path) -> str:
        if isinstance(part, ast.FormattedValue):
            value = self._value(part.value, path)
            return f"{{{value.text}}}" if isinstance(value, Ref) else str(value)
        return str(part.value) if isinstance(part, ast.Constant) else ast.unparse(part)

    def _call(self, node: ast.Call, path: Path) -> Value:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[], keywords=[]) if self.has(
                name
            ):
                return self._method(name)
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str() as name), *_]):
                return self._attribute(self._value(owner, path), name, node)
            case ast.Call(func=ast.Name(id="bool"), args=[operand]):
                decided = truth(self._value(operand, path), self.facts)
                return Ref(ast.unparse(node)) if decided is None else decided
            case ast.Call(func=ast.Name(id="any"), args=[ast.GeneratorExp() as generator]):
                return self._any(generator, node, path)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as between), attr="join"), args=[operand]):
                items = self._value(operand, path)
                if isinstance(items, Gathered):
                    return between.join(f.text for f in items.items if f.certain)
        return self._known(ast.unparse(node))

    def _any(self, generator: ast.GeneratorExp, node: ast.Call, path: Path) -> Value:
        match generator.generators:
            case [ast.comprehension(target=ast.Name(id=name), ifs=[], is_async=0) as loop]:
                items = self._value(loop.iter, path)
                if isinstance(items, tuple):
                    found = [self._each(generator.elt, name, item, path) for item in items]
                    return True if True in found else Ref(ast.unparse(node)) if None in found else False
        return Ref(ast.unparse(node))

    def _each(self, element: ast.expr, name: str, item: Value, path: Path) -> bool | None:
        inner = Path({**path.names, name: item}, path.tests, path.maybe)
        return truth(self._value(element, inner), self.facts)


def _formats(node: ast.JoinedStr) -> bool:
    return any(isinstance(p, ast.FormattedValue) and (p.format_spec or p.conversion != -1) for p in node.values)


def _literal(node: ast.expr, name: str) -> Value:
    inner = node.args[0] if isinstance(node, ast.Call) and _is_set(node) and len(node.args) == 1 else node
    try:
        value = ast.literal_eval(inner)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Ref(name)
    if isinstance(value, set | list | tuple):
        return tuple(sorted(value, key=repr))
    return value if value is None or isinstance(value, bool | int | float | str) else Ref(name)


def _is_set(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in ("frozenset", "set", "tuple", "list")
