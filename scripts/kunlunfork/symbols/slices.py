"""What a function passes to another: an argument as text, with every local variable in it replaced by what it was set
to. A changed dtype ten lines above a call changes the text of the argument; a changed name does not."""

from __future__ import annotations

import ast

from kunlunfork.symbols import canon
from kunlunfork.symbols.canon import Canon

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Bindings = dict[str, list[tuple[str, ast.AST]]]
# How many steps back what is passed is followed.
_FAR = 10


def _bindings(function: _Function) -> _Bindings:
    """What each local is set to: (how, the expression), as in the source; nested functions are not entered."""
    found: _Bindings = {}

    def bind(target: ast.AST, how: str, value: ast.AST) -> None:
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append((how, value))
        elif isinstance(target, ast.Tuple | ast.List):
            same = isinstance(value, ast.Tuple | ast.List) and how == "" and len(value.elts) == len(target.elts)
            for i, each in enumerate(target.elts):
                if same and not any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts)):  # type: ignore[attr-defined]
                    bind(each, "", value.elts[i])  # type: ignore[attr-defined]
                else:
                    bind(each, f"{how}[{i}]", value)
        elif isinstance(target, ast.Starred):
            bind(target.value, f"{how}*", value)

    todo: list[ast.AST] = list(reversed(function.body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(target, "", node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            bind(node.target, "", node.value)
        elif isinstance(node, ast.AugAssign):
            bind(node.target, type(node.op).__name__, node.value)
        elif isinstance(node, ast.For | ast.AsyncFor):
            bind(node.target, "for", node.iter)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            bind(node.optional_vars, "with", node.context_expr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                where = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                name = (alias.asname or alias.name).split(".")[0]
                found.setdefault(name, []).append((f"import {where}:{alias.name}", ast.Pass()))
        elif isinstance(node, _Function | ast.ClassDef):
            found.setdefault(node.name, []).append(("def", ast.Constant(canon.digest(canon.text(node)))))
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            todo += reversed(list(ast.iter_child_nodes(node)))
    return found


class Slices(Canon):
    """Writes expressions of one function."""

    def __init__(self, function: _Function) -> None:
        super().__init__(canon.names_of(function))
        self._function = function
        self._labels: dict[str, str] | None = None

    def local(self, depth: int, name: str) -> str:
        return super().local(depth, name) if depth > 0 else f"\0{name}\0"

    def argument(self, node: ast.expr) -> str:
        """The fingerprint of an argument."""
        return canon.digest(self._filled(self._template(node), self._label()))

    def _template(self, node: ast.AST) -> str:
        """Its text, with the locals of the function by name between NULs."""
        self.count = 0
        return self.text(node)

    @staticmethod
    def _filled(template: str, labels: dict[str, str]) -> str:
        parts = template.split("\0")
        parts[1::2] = [labels.get(name, "?") for name in parts[1::2]]
        return "".join(parts)

    def _label(self) -> dict[str, str]:
        """A fingerprint of each local: of what it is set to, of the locals in that, and so on. Each round looks a step
        further back, so that locals that are made of each other (in loops) come to an end."""
        if self._labels is None:
            made = {
                name: [f"{how}{self._template(value)}" for how, value in values]
                for name, values in _bindings(self._function).items()
            }
            labels: dict[str, str] = {}
            for _ in range(min(len(made), _FAR) + 1):
                now = {
                    n: canon.digest("|".join(sorted({self._filled(t, labels) for t in ts}))) for n, ts in made.items()
                }
                if now == labels:
                    break
                labels = now
            self._labels = labels
        return self._labels
