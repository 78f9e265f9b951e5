"""Where a symbol went that a release no longer has: by its name, its body, and its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from kunlunfork.symbols.facts import Class, Constant, Function
from kunlunfork.symbols.release import Definition, Modules, Symbol

# How alike two texts are (share of lines): with the same name, and with another.
_SAME_NAME, _OTHER_NAME = 0.4, 0.6


@dataclass(frozen=True)
class Place:
    symbol: Symbol
    likeness: float


def text_of(release: Modules, symbol: Symbol) -> list[str]:
    """The lines of a definition, without what they are indented by."""
    made = release.definition(symbol)
    if made is None:
        return []
    lines = release.source(symbol.module).decode(errors="replace").splitlines()
    found = lines[made.line - 1 : made.end]
    margin = min((len(x) - len(x.lstrip()) for x in found if x.strip()), default=0)
    return [line[margin:].rstrip() for line in found]


def find(old: Modules, new: Modules, symbol: Symbol, universe: Iterable[str]) -> Place | None:
    """The best place for what `old` had at `symbol` among the modules `universe` of `new`; None where none is like it.

    What `old` had there too is not taken: it was there beside it.
    """
    made = old.definition(symbol)
    owner, _, last = symbol.name.rpartition(".")
    if made is None:
        return None
    if owner:
        # A member goes with its class, or up to a base of it.
        inherited = new.find(symbol.module, symbol.name)
        if inherited is not None and new.definition(inherited) is not None:
            return Place(inherited, 1.0)
        if new.definition(Symbol(symbol.module, owner)) is None:
            place = find(old, new, Symbol(symbol.module, owner), universe)
            found = new.find(place.symbol.module, f"{place.symbol.name}.{last}") if place is not None else None
            if place is not None and found is not None:
                return Place(found, place.likeness)
    text = text_of(old, symbol)
    best: Place | None = None
    for other in _candidates(old, new, symbol, made, universe):
        same = other.name.rpartition(".")[2] == last
        there = new.definition(other)
        assert there is not None
        likeness = 1.0 if _body(there) == _body(made) else _likeness(text, text_of(new, other))
        # A name says more than some lines.
        if likeness >= (_SAME_NAME if same else _OTHER_NAME) and (
            best is None or _rank(symbol, likeness, other) > _rank(symbol, best.likeness, best.symbol)
        ):
            best = Place(other, likeness)
    return best


def _rank(symbol: Symbol, likeness: float, other: Symbol) -> tuple[float, bool, str]:
    same = other.name.rpartition(".")[2] == symbol.name.rpartition(".")[2]
    return (likeness + (0.3 if same else 0.0), other.module == symbol.module, str(other))


def _likeness(one: list[str], other: list[str]) -> float:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= _SAME_NAME else 0.0


def _body(made: Definition) -> str:
    return made.value if isinstance(made, Constant) else made.body


def _candidates(
    old: Modules, new: Modules, symbol: Symbol, made: Definition, universe: Iterable[str]
) -> Iterator[Symbol]:
    last = symbol.name.rpartition(".")[2]
    words = _words(made)
    for module in universe:
        now, was = new.facts(module), old.facts(module)
        if now is None:
            continue
        table: dict[str, Function] | dict[str, Class] | dict[str, Constant]
        table = (
            now.functions if isinstance(made, Function) else now.classes if isinstance(made, Class) else now.constants
        )
        before = {} if was is None else {**was.functions, **was.classes, **was.constants}
        for name, other in table.items():
            if name in before:
                continue
            if (
                name.rpartition(".")[2] == last
                or _body(other) == _body(made)
                or (words and len(words & _words(other)) * 2 >= len(words))
            ):
                yield Symbol(module, name)


def _words(made: Definition) -> frozenset[str]:
    """What tells a definition from others: parameters, or methods."""
    if isinstance(made, Function):
        return frozenset(p.name for p in made.params) - {"self", "cls"}
    return frozenset(made.methods) if isinstance(made, Class) else frozenset()
