"""What kind of thing an expression of ours is, as far as upstream's classes go: enough to say which class an attribute
or a method belongs to. What is not known is None, and is no contract."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kunlunfork.symbols.facts import Attribute, Class, Function
from kunlunfork.symbols.release import Modules, Symbol

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_FAR = 6


@dataclass(frozen=True)
class Kind:
    """A module, class or function itself, or an `instance` of the class `symbol`."""

    symbol: Symbol
    instance: bool = False


def annotated(modules: Modules, module: str, where: str, text: str) -> Kind | None:
    """An instance of the first class that an annotation names: containers count as what they hold."""
    for name in _NAME.findall(text):
        found = modules.find(module, name, where)
        if found is not None and isinstance(modules.definition(found), Class):
            return Kind(found, True)
    return None


def member(modules: Modules, of: Kind, name: str, far: int = _FAR) -> tuple[Symbol | None, Kind | None]:
    """The symbol of `of.name`, and what it is."""
    if not of.instance:
        found = modules.find(of.symbol.module, f"{of.symbol.name}.{name}") if of.symbol.name else None
        if not of.symbol.name:
            found = modules.find(of.symbol.module, name)
        if found is None:
            return None, None
        return found, Kind(found)
    for owner in modules.mro(of.symbol):
        symbol = Symbol(owner.module, f"{owner.name}.{name}")
        made = modules.definition(symbol)
        if isinstance(made, Function):
            if any(d.endswith(("property", "cached_property")) for d in made.decorators):
                return symbol, annotated(modules, owner.module, made.name, made.returns)
            return symbol, Kind(symbol)
        attribute = modules.attribute(owner, name)
        if attribute is not None:
            return symbol, _of_attribute(modules, owner, attribute, far)
    return None, None


def _of_attribute(modules: Modules, owner: Symbol, attribute: Attribute, far: int) -> Kind | None:
    found = annotated(modules, owner.module, "", attribute.annotation) if attribute.annotation else None
    for kind in attribute.kinds:
        if found is None and far > 0:
            how, _, name = kind.partition(" ")
            found = made_by(modules, owner, how, name, far - 1)
    return found


def made_by(
    modules: Modules, owner: Symbol | None, how: str, name: str, far: int, module: str = "", where: str = ""
) -> Kind | None:
    """What `call X`, `is X` or `type X` makes, in a method of `owner` or a function of `module`."""
    module = owner.module if owner is not None else module
    if how == "type":
        return annotated(modules, module, where, name)
    parts = name.replace("[]", "").replace("()", "").split(".")
    at: Kind | None
    if parts[0] in ("self", "cls") and owner is not None:
        at = Kind(owner, True)
    else:
        found = modules.find(module, parts[0], where) or _anywhere(modules, module, parts[0])
        at = None if found is None else Kind(found)
    for part in parts[1:]:
        if at is None or far < 0:
            return None
        _, at = member(modules, at, part, far - 1)
    return called(modules, at) if how == "call" else at


def _anywhere(modules: Modules, module: str, name: str) -> Symbol | None:
    """A name that one function of the module imports."""
    facts = modules.facts(module)
    for item in facts.imports if facts is not None else ():
        if item.name == name and item.where:
            return modules.find(module, name, item.where)
    return None


def called(modules: Modules, of: Kind | None) -> Kind | None:
    """What a call of it gives."""
    if of is None or of.instance:
        return None
    made = modules.definition(of.symbol)
    if isinstance(made, Class):
        return Kind(of.symbol, True)
    if isinstance(made, Function):
        return annotated(modules, of.symbol.module, made.name, made.returns)
    return None
