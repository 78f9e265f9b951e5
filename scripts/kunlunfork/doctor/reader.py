"""What a method of upstream would return, read from its source, as far as known facts decide it.

The method is walked, never run. A test that the facts do not decide is taken both ways; a statement that this does not
know is an error rather than a guess.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kunlunfork.doctor.expressions import Expressions, Path, Test
from kunlunfork.doctor.values import Feature, Gathered, Ref, Value, truth

MAX_PATHS = 64

# Calls that are made for what they write, not for what they return.
_LOGS = ("logger", "logging", "warnings")
# What may stand in the branch of an undecided test without its being taken both ways.
_HARMLESS = (ast.Expr, ast.If, ast.Pass, ast.Import, ast.ImportFrom)


class Unreadable(Exception):
    """A method that is not there, or does what this does not know; `line` says where."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


@dataclass(frozen=True)
class Outcome:
    """One way that a method can end: `text` is what it says there; `value` of a raise is its message."""

    kind: Literal["return", "raise"]
    value: Value
    line: int
    tests: tuple[Test, ...]
    text: str = ""

    @property
    def assumed(self) -> tuple[Test, ...]:
        return tuple(test for test in self.tests if test.assumed)


class Reader(Expressions):
    """One class of one module. `facts`: dotted name (`self.speculative_config.method`) -> value, or PRESENT."""

    def __init__(self, source: bytes, class_name: str, facts: Mapping[str, Value]) -> None:
        """Raises `Unreadable` where the source does not parse or has no such class."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.module = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            raise Unreadable(f"it does not parse: {e}") from e
        self.facts = facts
        classes = [n for n in self.module.body if isinstance(n, ast.ClassDef) and n.name == class_name]
        if not classes:
            raise Unreadable(f"it has no class {class_name}")
        self.methods = {n.name: n for n in classes[-1].body if isinstance(n, ast.FunctionDef)}
        self._outcomes: dict[str, tuple[Outcome, ...]] = {}
        self._active: set[str] = set()

    def outcomes(self, method: str) -> tuple[Outcome, ...]:
        """Every way that a method can end (raises `Unreadable`)."""
        if method in self._outcomes:
            return self._outcomes[method]
        if method not in self.methods:
            raise Unreadable(f"it has no {method}")
        if method in self._active:
            raise Unreadable(f"{method} calls itself", self.methods[method].lineno)
        self._active.add(method)
        try:
            node = self.methods[method]
            try:
                done, open_ = self._block(node.body, Path())
            except RecursionError as e:
                raise Unreadable(f"{method} is nested too deeply", node.lineno) from e
        finally:
            self._active.discard(method)
        ends = tuple(Outcome("return", None, node.end_lineno or node.lineno, path.tests) for path in open_)
        self._outcomes[method] = (*done, *ends)
        return self._outcomes[method]

    def imported(self, name: str) -> str | None:
        """The module that a name of this one is imported from."""
        for node in self.module.body:
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
                return node.module
        return None

    # Statements.

    def _block(self, body: list[ast.stmt], start: Path) -> tuple[list[Outcome], list[Path]]:
        done: list[Outcome] = []
        paths = [start]
        for node in body:
            following: list[Path] = []
            for path in paths:
                ends, goes_on = self._statement(node, path)
                done += ends
                following += goes_on
            paths = following
            if len(done) + len(paths) > MAX_PATHS:
                raise Unreadable(f"more than {MAX_PATHS} ways through it", node.lineno)
        return done, paths

    def _statement(self, node: ast.stmt, path: Path) -> tuple[list[Outcome], list[Path]]:
        match node:
            case ast.Return():
                value = None if node.value is None else self._value(node.value, path)
                return [Outcome("return", value, node.lineno, path.tests, ast.unparse(node))], []
            case ast.Raise():
                return [Outcome("raise", self._message(node, path), node.lineno, path.tests)], []
            case ast.If():
                return self._if(node, path)
            case ast.Assign(targets=[ast.Name(id=name)]):
                path.names[name] = self._value(node.value, path)
            case ast.AnnAssign(target=ast.Name(id=name)):
                path.names[name] = Ref(name) if node.value is None else self._value(node.value, path)
            case ast.Expr():
                self._effect(node, path)
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case _:
                raise Unreadable(f"a statement of a kind that doctor does not read: {_short(node)}", node.lineno)
        return [], [path]

    def _if(self, node: ast.If, path: Path) -> tuple[list[Outcome], list[Path]]:
        text = ast.unparse(node.test)
        decided = truth(self._value(node.test, path), self.facts)
        if decided is None and all(_harmless(child) for child in (*node.body, *node.orelse)):
            # Both branches only gather: what they would add is possible, and nothing else differs.
            for branch, why in ((node.body, text), (node.orelse, f"not ({text})")):
                around, path.maybe = path.maybe, (*path.maybe, why)
                self._block(branch, path)
                path.maybe = around
            return [], [path]
        done: list[Outcome] = []
        paths: list[Path] = []
        for value, branch in ((True, node.body), (False, node.orelse)):
            if decided in (None, value):
                ends, goes_on = self._block(branch, path.fork(Test(node.lineno, text, value, decided is None)))
                done += ends
                paths += goes_on
        return done, paths

    def _effect(self, node: ast.Expr, path: Path) -> None:
        match node.value:
            case ast.Constant():
                return
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[item]) if isinstance(
                gathered := path.names.get(name), Gathered
            ):
                text = self._text(item, path)
                gathered.items.append(Feature(text, not path.maybe, node.lineno, " and ".join(path.maybe)))
                return
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in _LOGS:
                return
        raise Unreadable(f"a call whose effect doctor does not know: {_short(node)}", node.lineno)

    def _message(self, node: ast.Raise, path: Path) -> Value:
        if isinstance(node.exc, ast.Call) and node.exc.args:
            return self._text(node.exc.args[0], path, node.exc)
        return "" if node.exc is None else ast.unparse(node.exc)

    def _method(self, name: str) -> Value:
        outcomes = self.outcomes(name)
        first = outcomes[0].value
        alike = all(o.kind == "return" and type(o.value) is type(first) and o.value == first for o in outcomes)
        return first if alike else Ref(f"self.{name}")


def _harmless(node: ast.stmt) -> bool:
    return all(isinstance(n, _HARMLESS) for n in ast.walk(node) if isinstance(n, ast.stmt))


def _short(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:80]
