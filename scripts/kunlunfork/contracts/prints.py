"""The fingerprint of a contract in one release: of its symbol, only what the roles make matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kunlunfork.contracts import model
from kunlunfork.contracts.callers import Callers, argument, passed
from kunlunfork.contracts.model import Contract, Print
from kunlunfork.symbols.facts import Attribute, Class, Constant, Function
from kunlunfork.symbols.release import Modules, Symbol

_BY_CALLERS = model.CALLED_BY_UPSTREAM
_ENGINE, _WORKER = "vllm.v1.", "vllm.v1.worker."
_MADE = frozenset({model.CALLS, model.BEHIND})


def _asks(contract: Contract) -> bool:
    """Whether it matters what upstream's code passes."""
    if _BY_CALLERS & set(contract.roles):
        return True
    return model.ATTRIBUTE in contract.roles and contract.symbol.module.startswith(_WORKER)


class Printer:
    """Fingerprints of one release.

    Args:
        names: of the classes that ours subclass, the members that ours have: see `extract.Held`.
        contracts: those that it is asked for, each with where it is defined in this release.
    """

    def __init__(
        self, release: Modules, names: Mapping[Symbol, frozenset[str]], contracts: Iterable[tuple[Contract, Symbol]]
    ) -> None:
        self.release = release
        self._names = names
        pairs = list(contracts)
        release.preload(symbol.module for _, symbol in pairs)
        # Half of vLLM imports its configuration; who makes one is no matter of ours.
        self._callers = Callers(release, {s.module for c, s in pairs if _asks(c) and s.module.startswith(_ENGINE)})

    def of(self, contract: Contract, symbol: Symbol) -> Print | None:
        """The fingerprint; None where there is no such symbol."""
        release = self.release
        if not symbol.name:
            return Print("module") if release.exists(symbol.module) else None
        made = release.definition(symbol)
        roles = frozenset(contract.roles)
        if isinstance(made, Function):
            return Print("function", self._function(made, symbol, roles))
        if isinstance(made, Class):
            return Print("class", self._class(contract, made, symbol, roles))
        owner, _, name = symbol.name.rpartition(".")
        attribute = release.attribute(Symbol(symbol.module, owner), name) if owner else None
        if attribute is not None:
            return Print("attribute", self._attribute(attribute, Symbol(symbol.module, owner)))
        if isinstance(made, Constant):
            return Print("constant", {"body": made.value, "types": made.annotation} if roles != {model.IMPORTS} else {})
        named = (path.partition(":") for path in contract.paths)
        return (
            Print("name") if any(what and release.find(module, what) == symbol for module, _, what in named) else None
        )

    def _function(self, made: Function, symbol: Symbol, roles: frozenset[str]) -> dict[str, str]:
        if roles == {model.IMPORTS}:
            return {}
        stars = {"*": "*", "**": "**"}
        names = [
            f"{stars.get(p.kind, '')}{p.name}" + {"positional": "/", "keyword": "!"}.get(p.kind, "")
            for p in made.params
        ]
        found = {
            "signature": ", ".join(names),
            "default": "\n".join(f"{p.name}={p.default}" for p in made.params if p.default),
            "types": "\n".join(
                [*(f"{p.name}: {p.annotation}" for p in made.params if p.annotation), f"-> {made.returns}"]
            ),
            "decorator": ", ".join(made.decorators),
            "body": made.body,
            "shapes": " ".join(made.shapes),
        }
        if roles & _BY_CALLERS:
            found["callers"] = "\n".join(sorted({passed(*call) for call in self._callers.of(symbol)}))
        return found

    def _class(self, contract: Contract, made: Class, symbol: Symbol, roles: frozenset[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        if model.SUBCLASSES in roles:
            found["bases"] = ", ".join(made.bases)
            found["members"] = ", ".join(self._must_know(symbol, self._names.get(contract.symbol, frozenset())))
        if roles & _MADE:
            declared = [a for a in made.attributes if a.declared]
            found["signature"] = ", ".join(a.name for a in declared)
            found["types"] = "\n".join(f"{a.name}: {a.annotation}" for a in declared if a.annotation)
            found["default"] = "\n".join(f"{a.name}={'|'.join(a.values)}" for a in declared if a.values)
            found["decorator"] = ", ".join(made.decorators)
            init = self.release.find(symbol.module, f"{symbol.name}.__init__")
            function = self.release.definition(init) if init is not None else None
            if isinstance(function, Function):
                own = self._function(function, symbol, frozenset({model.CALLS}))
                found.update({k: f"{found.get(k, '')}\n{own[k]}" for k in ("signature", "types", "default")})
        if model.BEHIND in roles:
            found["body"] = made.body
        return found

    def _must_know(self, symbol: Symbol, names: frozenset[str]) -> list[str]:
        """The members of a class and its bases that ours would get in the way of, and those it must have."""
        found = set()
        for owner in self.release.mro(symbol):
            made = self.release.definition(owner)
            assert isinstance(made, Class)
            for method in made.methods:
                function = self.release.definition(Symbol(owner.module, f"{owner.name}.{method}"))
                if isinstance(function, Function) and function.abstract:
                    found.add(f"{method} (abstract)")
            found |= {name for name in (*made.methods, *(a.name for a in made.attributes)) if name in names}
        return sorted(found)

    def _attribute(self, made: Attribute, owner: Symbol) -> dict[str, str]:
        kinds = [k for k in made.kinds if not k.startswith("is ")]
        found = {
            "types": "; ".join([made.annotation, *kinds]),
            "body": " ".join(sorted(set(made.values))),
            "shapes": " ".join(made.shapes),
        }
        owned = self.release.definition(owner)
        if made.declared and isinstance(owned, Class) and owner.module.startswith(_WORKER):
            lines = set()
            for module, function, call in self._callers.of(owner):
                what = argument(owned, call, made.name)
                if what:
                    lines.add(f"{module}:{function.name} {what}")
            found["set by"] = "\n".join(sorted(lines))
        return found
