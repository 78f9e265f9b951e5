"""What a module of ours uses of upstream: names, calls, attributes, by following what its variables are."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from kunlunfork.contracts import model, typed
from kunlunfork.contracts.model import Use
from kunlunfork.contracts.typed import Kind
from kunlunfork.symbols import canon
from kunlunfork.symbols.facts import Class, Function
from kunlunfork.symbols.release import TOP, Modules, Symbol

_Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = dict[str, "Kind | None"]


@dataclass(frozen=True)
class Passed:
    """A call of something of upstream's: how many positional arguments, which keywords. `star`: more are unpacked.
    `bound`: the first parameter is there already."""

    symbol: Symbol
    user: str
    count: int
    keywords: tuple[str, ...]
    star: bool
    bound: bool


@dataclass
class Ours:
    """What is known of all modules of ours together.

    `selves`: what `self` is in a function or a class of ours. `given`: what callers of ours pass, by parameter; it
    grows while modules are read, so that they are read until it does not.
    """

    modules: Modules
    mine: frozenset[str]
    selves: Mapping[Symbol, Kind] = field(default_factory=dict)
    sites: Mapping[Symbol, str] = field(default_factory=dict)
    hints: Mapping[Symbol, Mapping[str, Kind]] = field(default_factory=dict)
    given: dict[Symbol, dict[str, Kind]] = field(default_factory=dict)
    passed: list[Passed] = field(default_factory=list)

    def is_upstream(self, symbol: Symbol | None) -> bool:
        return symbol is not None and symbol.module not in self.mine and symbol.module.split(".")[0] == TOP


def uses(ours: Ours, module: str, tree: ast.Module) -> list[Use]:
    """The uses of a module; `ours.given` learns what it passes to others."""
    reader = _Reader(ours, module)
    reader.block(tree.body, {})
    return reader.found


class _Reader:
    def __init__(self, ours: Ours, module: str) -> None:
        self._ours, self._modules, self._module = ours, ours.modules, module
        self._path = ours.modules.paths[module].decode()
        self._scope = ""
        self._outer: list[tuple[str, Kind | None]] = []
        self.found: list[Use] = []

    def _add(self, symbol: Symbol, role: str, path: str = "") -> None:
        site = next((s for s in (self._ours.sites.get(Symbol(self._module, n)) for n in self._around()) if s), "")
        self.found.append(Use(symbol, role, f"{self._path}::{self._scope}", path, site))

    def _around(self) -> list[str]:
        parts = self._scope.split(".")
        return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]

    # -- statements

    def block(self, body: list[ast.stmt], names: Names) -> None:
        for node in body:
            self._statement(node, names)

    def _statement(self, node: ast.stmt, names: Names) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, _Function):
            self._function(node, names)
        elif isinstance(node, ast.ClassDef):
            for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
                self._expression(part, names)
            self._inside(node.name, node.body, dict(names))
        elif isinstance(node, ast.Assign):
            kind = self._expression(node.value, names)
            for target in node.targets:
                self._bind(target, kind, node.value, names)
        elif isinstance(node, ast.AnnAssign):
            kind = self._expression(node.value, names) if node.value is not None else None
            note = typed.annotated(self._modules, self._module, self._scope, ast.unparse(node.annotation))
            self._bind(node.target, note or kind, node.value, names)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._loop(node.target, node.iter, names)
            self.block([*node.body, *node.orelse], names)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                kind = self._expression(item.context_expr, names)
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, kind, None, names)
            self.block(node.body, names)
        else:
            for name, value in ast.iter_fields(node):
                if isinstance(value, ast.expr):
                    self._expression(value, names)
                elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    self.block(value, names)
                elif name in ("handlers", "cases"):
                    for part in value:
                        if isinstance(getattr(part, "type", None), ast.expr):
                            self._expression(part.type, names)
                        self.block(part.body, names)

    def _inside(self, name: str, body: list[ast.stmt], names: Names) -> None:
        before = self._scope
        self._scope = f"{before}.{name}" if before else name
        self.block(body, names)
        self._scope = before

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == TOP and alias.name not in self._ours.mine:
                    self._add(Symbol(alias.name, ""), model.IMPORTS, alias.name)
            return
        source = self._modules.absolute("." * node.level + (node.module or ""), self._module)
        if source.split(".")[0] != TOP:
            return
        for alias in node.names:
            below = f"{source}.{alias.name}"
            if source in self._ours.mine or below in self._ours.mine:
                continue
            symbol = self._modules.find(source, alias.name)
            if symbol is not None and not self._ours.is_upstream(symbol):
                continue  # ours, through a package of upstream's
            self._add(symbol or Symbol(source, alias.name), model.IMPORTS, f"{source}:{alias.name}")

    def _function(self, node: _Function, names: Names) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            self._expression(part, names)
        name = f"{self._scope}.{node.name}" if self._scope else node.name
        me = Symbol(self._module, name)
        inner = dict(names)
        known = {**self._ours.given.get(me, {}), **self._ours.hints.get(me, {})}
        for i, arg in enumerate(canon.parameters(node.args)):
            kind = None
            if arg.annotation is not None:
                kind = typed.annotated(self._modules, self._module, name, ast.unparse(arg.annotation))
            if i == 0 and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list):
                kind = kind or self._ours.selves.get(me) or self._ours.selves.get(Symbol(self._module, self._scope))
            inner[arg.arg] = kind or known.get(arg.arg)
        self._outer.append((next((a.arg for a in canon.parameters(node.args)), ""), None))
        self._inside(node.name, node.body, inner)
        self._outer.pop()

    def _loop(self, target: ast.expr, over: ast.expr, names: Names) -> None:
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and isinstance(target, ast.Tuple):
            table: dict[str, list[ast.expr | None]] = {"zip": [*over.args], "enumerate": [None, *over.args]}
            parts = table.get(over.func.id)
            if parts is not None and len(parts) >= len(target.elts):
                for each, part in zip(target.elts, parts, strict=False):
                    self._bind(each, self._expression(part, names) if part is not None else None, None, names)
                return
        self._bind(target, self._expression(over, names), None, names)

    def _bind(self, target: ast.expr, kind: Kind | None, value: ast.expr | None, names: Names) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = kind
        elif isinstance(target, ast.Tuple | ast.List):
            parts = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else []
            )
            for i, each in enumerate(target.elts):
                self._bind(each, self._expression(parts[i], names) if parts else None, None, names)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, None, names)
        else:
            self._expression(target, names, role=model.REBINDS)

    # -- expressions

    def _expression(self, node: ast.expr | None, names: Names, role: str = model.USES) -> Kind | None:
        """What it is; what it uses of upstream is noted. `role`: what is done with it."""
        if isinstance(node, ast.Name):
            return self._name(node, names, role)
        if isinstance(node, ast.Attribute):
            return self._attribute(self._expression(node.value, names), node.attr, role)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.Lambda):
            inner = dict(names)
            inner.update({arg.arg: None for arg in canon.parameters(node.args)})
            self._expression(node.body, inner)
            return None
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            inner = dict(names)
            for generator in node.generators:
                self._loop(generator.target, generator.iter, inner)
                for test in generator.ifs:
                    self._expression(test, inner)
            if isinstance(node, ast.DictComp):
                self._expression(node.key, inner)
                return self._expression(node.value, inner)
            return self._expression(node.elt, inner)
        if isinstance(node, ast.Tuple):
            self._pair(node)
        if isinstance(node, ast.NamedExpr):
            kind = self._expression(node.value, names)
            names[node.target.id] = kind
            return kind
        if isinstance(node, ast.Constant):
            self._string(node)
            return None
        kinds = [
            self._expression(part, names)
            for part in ast.iter_child_nodes(node or ast.Pass())
            if isinstance(part, ast.expr)
        ]
        for part in ast.iter_child_nodes(node or ast.Pass()):
            if isinstance(part, ast.keyword):
                kinds.append(self._expression(part.value, names))
        # An item of a container, one of two.
        loose = isinstance(
            node, ast.Subscript | ast.Starred | ast.Await | ast.IfExp | ast.BoolOp | ast.List | ast.Tuple
        )
        return next((k for k in kinds if k is not None), None) if loose else None

    def _name(self, node: ast.Name, names: Names, role: str) -> Kind | None:
        if node.id in names:
            return names[node.id]
        found = self._modules.find(self._module, node.id, self._scope)
        for scope in self._around():
            found = found or self._modules.find(self._module, node.id, scope)
        if found is None:
            return None
        if found.name and self._ours.is_upstream(found):
            self._add(found, role)
        return Kind(found)

    def _attribute(self, of: Kind | None, name: str, role: str) -> Kind | None:
        if of is None:
            return None
        symbol, kind = typed.member(self._modules, of, name)
        if symbol is not None and symbol.name and self._ours.is_upstream(symbol):
            made = self._modules.definition(symbol)
            is_member = made is None or (of.instance and not isinstance(made, Function | Class))
            self._add(symbol, model.ATTRIBUTE if is_member and role != model.REBINDS else role)
        return kind

    def _call(self, node: ast.Call, names: Names) -> Kind | None:
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            of, name = self._expression(node.args[0], names), node.args[1]
            for part in node.args[2:]:
                self._expression(part, names)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                return self._attribute(of, name.value, model.REBINDS if node.func.id == "setattr" else model.USES)
            self._expression(name, names)
            return None
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            me = self._outer[-1][0] if self._outer else ""
            return names.get(me)
        of = self._expression(node.func, names, role=model.CALLS)
        passed = [self._expression(part, names) for part in node.args]
        keywords = {k.arg: self._expression(k.value, names) for k in node.keywords}
        if of is not None and of.symbol.name and not of.instance and self._ours.is_upstream(of.symbol):
            star = any(isinstance(a, ast.Starred) for a in node.args) or None in keywords
            count = sum(not isinstance(a, ast.Starred) for a in node.args)
            bound = isinstance(node.func, ast.Attribute) and self._is_instance(node.func.value, names)
            named = tuple(k for k in keywords if k is not None)
            user = f"{self._path}::{self._scope}"
            self._ours.passed.append(Passed(of.symbol, user, count, named, star, bound))
        if of is not None and not of.instance and of.symbol.module in self._ours.mine:
            self._learn(of.symbol, node, passed, keywords)
        return typed.called(self._modules, of)

    def _is_instance(self, node: ast.expr, names: Names) -> bool:
        found = len(self.found)
        kind = self._expression(node, names)
        del self.found[found:]  # it was noted before
        return kind is not None and kind.instance

    def _learn(
        self, symbol: Symbol, node: ast.Call, passed: list[Kind | None], keywords: Mapping[str | None, Kind | None]
    ) -> None:
        made = self._modules.definition(symbol)
        if isinstance(made, Class):
            symbol = Symbol(symbol.module, f"{symbol.name}.__init__")
            made = self._modules.definition(symbol)
        if not isinstance(made, Function):
            return
        known = self._ours.given.setdefault(symbol, {})
        plain = [p.name for p in made.params if p.kind in ("positional", "any")]
        if "." in symbol.name and plain:
            plain = plain[1:]
        for name, kind, part in zip(plain, passed, node.args, strict=False):
            if isinstance(part, ast.Starred):
                break
            if kind is not None:
                known.setdefault(name, kind)
        for keyword, kind in keywords.items():
            if keyword is not None and kind is not None:
                known.setdefault(keyword, kind)

    # -- names in strings

    def _string(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str) or not text.startswith(f"{TOP}.") or text in self._ours.mine:
            return
        if text in self._modules.paths:
            self._add(Symbol(text, ""), model.IMPORTS, text)
        else:
            self._target(text)

    def _target(self, text: str) -> None:
        """`vllm.module.Class.member` in a string: how mocks and tables name what they put something else in the place
        of; with a colon before the name, too."""
        parts = text.replace(":", ".", 1).split(".")
        if not all(part.isidentifier() for part in parts):
            return
        for n in range(len(parts) - 1, 1, -1):
            module = ".".join(parts[:n])
            if module in self._modules.paths and module not in self._ours.mine:
                symbol = self._modules.find(module, ".".join(parts[n:]))
                if symbol is not None and symbol.name and self._ours.is_upstream(symbol):
                    self._add(symbol, model.REBINDS)
                return

    def _pair(self, node: ast.Tuple) -> None:
        """("Class", "member") of a module that this one imports: how tables of replacements are written."""
        values = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if len(node.elts) != 2 or len(values) != 2 or not all(v.isidentifier() for v in values):
            return
        facts = self._modules.facts(self._module)
        for item in facts.imports if facts is not None else ():
            found = self._modules.find(self._module, item.name, item.where) if item.name and item.name != "*" else None
            if found is None or found.name or not self._ours.is_upstream(found):
                continue
            if isinstance(self._modules.definition(Symbol(found.module, values[0])), Class):
                symbol = self._modules.find(found.module, f"{values[0]}.{values[1]}")
                if symbol is not None:
                    self._add(symbol, model.REBINDS)
