"""What the overlay puts in the place of upstream's symbols, by its own source: sites, subclasses, rebound names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kunlunfork import scopes
from kunlunfork.diff import sites
from kunlunfork.fork import Fork

REPLACED, SUBCLASSED, SHADOWED, BYPASSED = "replaced", "subclassed", "shadowed", "bypassed"
_TOP = "vllm"
_ALWAYS = "always"


@dataclass(frozen=True)
class StandIn:
    """What runs, or is used, in the place of the upstream symbol `path::name`.

    `by` is the overlay's `path::name`; `backend` the value of KUNLUN_KERNELS with which it is taken ('' for any),
    `switch` the variable that turns it off, `when` what else must hold, '' for nothing.
    """

    path: str
    name: str
    kind: str
    by: str
    backend: str = ""
    switch: str | None = None
    when: str = ""

    def __str__(self) -> str:
        how = [
            *([f"backend {self.backend}"] if self.backend else []),
            *([f"switch {self.switch}"] if self.switch else []),
            *([self.when] if self.when else []),
        ]
        return self.by + (f" ({', '.join(how)})" if how else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "by": self.by, "backend": self.backend, "switch": self.switch, "when": self.when,
        }  # fmt: skip


def find(fork: Fork) -> tuple[StandIn, ...]:
    """Everything that stands in for something of upstream's, sites first (raises `ForkError`: not Python)."""
    folders = tuple(f"{sites.KUNLUN}{folder}/".encode() for folder, _ in sites.BACKENDS)
    modules = {
        path.decode(errors="replace"): scopes.parse(file.data, where=path.decode(errors="replace"))
        for path, file in fork.overlay.files.items()
        # What implements sites has nothing else; and to parse it takes longer than all the rest.
        if path.endswith(b".py") and not path.startswith(folders)
    }
    return (*_of_sites(fork), *_subclasses(modules), *_rebound(modules))


def _of_sites(fork: Fork) -> Iterator[StandIn]:
    files = fork.overlay.files
    for site in sites.load(fork):
        for folder, backend in sites.BACKENDS:
            path = f"{sites.KUNLUN}{folder}/{site.impl}.py"
            file = files.get(path.encode())
            there = set() if file is None else {found.decode() for found in _FUNCTION.findall(file.data)}
            if site.name in there:
                off = f"{site.switch} is off and no Triton launches" if site.switch else ""
                reference = backend == "reference"
                yield StandIn(
                    site.path, site.qualname, REPLACED, f"{path}::{site.name}", backend,
                    None if reference else site.switch, off if reference else "",
                )  # fmt: skip
            for switch, function in site.variants:
                if function in there:
                    when = f"while {switch} is off"
                    yield StandIn(site.path, site.qualname, REPLACED, f"{path}::{function}", backend, site.switch, when)
            if site.when_greedy in there:
                when = "every row of the batch is greedy; off: KUNLUN_GUMBEL_GREEDY"
                name = f"{path}::{site.when_greedy}"
                yield StandIn(site.path, site.qualname, REPLACED, name, backend, site.switch, when)


_FUNCTION = re.compile(rb"^(?:async )?def (\w+)\(", re.MULTILINE)
_DEF = ast.FunctionDef | ast.AsyncFunctionDef


class _Names:
    """What the names of a module of the overlay mean: `path::name` of upstream's, or of the overlay's own."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path = path
        self._own = {node.name for node in tree.body if isinstance(node, _DEF | ast.ClassDef)}
        self._package = path.removesuffix(".py").replace("/", ".").rpartition(".")[0]
        self.imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                parts = self._package.split(".")
                start = parts[: len(parts) - node.level + 1] if node.level else []
                module = ".".join([*start, *([node.module] if node.module else [])])
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    self.imported[alias.asname or first] = alias.name if alias.asname else first

    def of(self, node: ast.AST) -> str:
        """The dotted name of what an expression means; '' for what is no name that is known."""
        if isinstance(node, ast.Name):
            if node.id in self._own:
                return f"{self._package}.{self._path.rpartition('/')[2].removesuffix('.py')}.{node.id}"
            return self.imported.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.of(node.value)):
            return f"{owner}.{node.attr}"
        return ""


def _split(dotted: str) -> tuple[str, str]:
    """(path of a module, name in it), by the capital letter or the last dot: `a.b.C` is `a/b.py`, `C`."""
    parts = dotted.split(".")
    at = next((i for i, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return "/".join(parts[:at]) + ".py", ".".join(parts[at:])


def _is_overlay(dotted: str, modules: Mapping[str, ast.Module]) -> bool:
    return _split(dotted)[0] in modules


def _subclasses(modules: Mapping[str, ast.Module]) -> Iterator[StandIn]:
    """Classes on top of upstream's: with `class`, and with `type` in a function that is called with the base."""
    for path, tree in sorted(modules.items()):
        names = _Names(path, tree)
        mixins_of: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from _stacked(modules, [names.of(base) for base in node.bases], f"{path}::{node.name}")
            elif isinstance(node, _DEF) and (mixins := _made_with_type(node, names)):
                mixins_of[node.name] = mixins
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in mixins_of:
                bases = [*mixins_of[node.func.id], *(names.of(arg) for arg in node.args)]
                yield from _stacked(modules, bases, f"{path}::{node.func.id}")


def _made_with_type(function: ast.FunctionDef | ast.AsyncFunctionDef, names: _Names) -> list[str]:
    """The mixins that a function puts before its parameter in `type(name, (Mixin, base), ...)`."""
    given = {arg.arg for arg in function.args.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type":
            for arg in node.args:
                if isinstance(arg, ast.Tuple) and any(isinstance(e, ast.Name) and e.id in given for e in arg.elts):
                    return [name for element in arg.elts if (name := names.of(element))]
    return []


def _stacked(modules: Mapping[str, ast.Module], bases: Iterable[str], by: str) -> Iterator[StandIn]:
    ours: list[str] = []
    for base in bases:
        if base.split(".")[0] != _TOP:
            continue
        if _is_overlay(base, modules):
            ours.append(base)
            continue
        path, name = _split(base)
        yield StandIn(path, name, SUBCLASSED, by, when=_ALWAYS)
        for mixin in ours:
            mixin_path, mixin_name = _split(mixin)
            for method in _methods(modules[mixin_path], mixin_name):
                yield StandIn(path, f"{name}.{method}", SHADOWED, f"{mixin_path}::{mixin_name}.{method}", when=_ALWAYS)


def _methods(tree: ast.Module, name: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from (each.name for each in node.body if isinstance(each, _DEF))


def _rebound(modules: Mapping[str, ast.Module]) -> Iterator[StandIn]:
    """Names of upstream's modules that the overlay sets: `module.NAME = ours`, and by a table of (class, method)."""
    for path, tree in sorted(modules.items()):
        names = _Names(path, tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, _DEF)):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                    target = names.of(node.targets[0])
                    if target.split(".")[0] == _TOP and not _is_overlay(target, modules):
                        owner, name = _split(target)
                        ours = names.of(node.value)
                        known = bool(ours) and _is_overlay(ours, modules)
                        by = "::".join(_split(ours)) if known else f"{path}::{function.name}"
                        yield StandIn(owner, name, SHADOWED, by, when=f"{path}::{function.name} has run")
                elif isinstance(node, ast.Call) and (owner := _set_through(node, names)):
                    for cls, method, ours in _table(tree):
                        when = f"{path}::{function.name} has run"
                        module = owner.replace(".", "/") + ".py"
                        yield StandIn(module, f"{cls}.{method}", SHADOWED, f"{path}::{ours}", when=when)


def _set_through(node: ast.Call, names: _Names) -> str:
    """The module of `setattr(getattr(module, owner), name, ours)`, '' for another call."""
    if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
        inner = node.args[0]
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "getattr":
            found = names.of(inner.args[0])
            return found if found.split(".")[0] == _TOP else ""
    return ""


def _table(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """The rows of a module's dicts `{(class, method): function}`."""
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
            for key, ours in zip(value.keys, value.values, strict=True):
                parts = [e.value for e in key.elts if isinstance(e, ast.Constant)] if isinstance(key, ast.Tuple) else []
                if len(parts) == 2 and isinstance(ours, ast.Name):
                    yield str(parts[0]), str(parts[1]), ours.id
