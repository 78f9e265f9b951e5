"""Who calls what, and with which arguments: the calls of upstream's that reach code of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from kunlunfork.contracts import typed
from kunlunfork.symbols import canon
from kunlunfork.symbols.facts import Call, Class, Function
from kunlunfork.symbols.release import Modules, Symbol


class Callers:
    """The calls in the modules that import one of `modules`, and in these themselves."""

    def __init__(self, release: Modules, modules: Iterable[str]) -> None:
        self._release = release
        self._modules = sorted({m for m in release.importers(modules) if m in release.paths})
        release.preload(self._modules)

    @cached_property
    def _calls(self) -> dict[str, list[tuple[str, Function, Call]]]:
        """By the last part of what is called, and by the name that an import gave it."""
        found: dict[str, list[tuple[str, Function, Call]]] = {}
        for module in self._modules:
            facts = self._release.facts(module)
            assert facts is not None
            real = {i.name: i.what for i in facts.imports if i.what and i.what != i.name}
            for function in facts.functions.values():
                for call in function.calls:
                    last = call.to.rpartition(".")[2]
                    for name in {last, real.get(last, last)}:
                        found.setdefault(name, []).append((module, function, call))
        return found

    @cached_property
    def _owners(self) -> dict[str, set[Symbol]]:
        """The classes that have a method of a name."""
        found: dict[str, set[Symbol]] = {}
        for module in self._modules:
            facts = self._release.facts(module)
            for name, made in (facts.classes if facts is not None else {}).items():
                for method in made.methods:
                    found.setdefault(method, set()).add(Symbol(module, name))
        return found

    def of(self, symbol: Symbol) -> Iterator[tuple[str, Function, Call]]:
        """The calls of a function, method or class: (module, the function that calls, the call)."""
        owner, _, last = symbol.name.rpartition(".")
        if last == "__init__":
            symbol = Symbol(symbol.module, owner)
            owner, _, last = owner.rpartition(".")
        for module, function, call in self._calls.get(last, ()):
            if owner:
                if self._is_method(module, function, call, Symbol(symbol.module, owner), last):
                    yield module, function, call
            elif "(" not in call.to and self._release.find(module, call.to, function.name) == symbol:
                yield module, function, call

    def _is_method(self, module: str, function: Function, call: Call, owner: Symbol, name: str) -> bool:
        receiver = call.to.rpartition(".")[0]
        if not receiver or "(" in receiver:
            return False
        kind = self._kind(module, function, receiver)
        if kind is not None and kind.instance:
            return self._related(kind.symbol, owner)
        # Not known: whoever else has a method of this name, is of the same family.
        return all(self._related(other, owner) for other in self._owners.get(name, ()))

    def _kind(self, module: str, function: Function, name: str) -> typed.Kind | None:
        first, _, rest = name.partition(".")
        within = function.name.rpartition(".")[0]
        owner = Symbol(module, within) if isinstance(self._release.definition(Symbol(module, within)), Class) else None
        parameter = next((p for p in function.params if p.name == first), None)
        if first == "self":
            return (
                typed.made_by(self._release, owner, "is", name, 4, module, function.name) if owner is not None else None
            )
        kind: typed.Kind | None = None
        if parameter is not None:
            kind = typed.annotated(self._release, module, function.name, parameter.annotation)
        else:
            made = dict(function.locals).get(first)
            if made is not None:
                how, _, what = made.partition(" ")
                kind = typed.made_by(self._release, owner, how, what, 4, module, function.name)
        for part in rest.split(".") if rest and kind is not None else ():
            _, kind = typed.member(self._release, kind, part.replace("[]", "")) if kind is not None else (None, None)
        return kind

    def _related(self, one: Symbol, other: Symbol) -> bool:
        return one == other or other in self._release.mro(one) or one in self._release.mro(other)


def passed(module: str, function: Function, call: Call) -> str:
    """A call as one line: who calls, how many arguments and which keywords, and a fingerprint of what is passed."""
    parts = [f"{len(call.args)} arguments"] if call.args else []
    parts += [name for name, _ in call.keywords] + ["*"] * call.star
    what = canon.digest(repr((call.args, sorted(call.keywords), call.star)))
    return f"{module}:{function.name} ({', '.join(parts)}) {what}"


def argument(made: Class, call: Call, name: str) -> str:
    """What a call of a class passes for one of its fields; '' for nothing that can be told."""
    for keyword, what in call.keywords:
        if keyword == name:
            return what
    fields = [a.name for a in made.attributes if a.declared]
    at = fields.index(name) if name in fields else -1
    return call.args[at] if 0 <= at < len(call.args) and not call.star else ""
