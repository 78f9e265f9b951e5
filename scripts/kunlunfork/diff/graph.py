"""Who calls whom in the V2 runner of one release, as far as names and constructors tell; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from kunlunfork.diff.facts import Reader
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.symbols.facts import Call, Class, Facts, Function

# (path, qualified name)
Symbol = tuple[str, str]
FOLDER = b"vllm/v1/worker/gpu"
_KUNLUN = b"vllm/v1/worker/gpu/kunlun/"
# An attribute of unknown make may be any class with such a method, unless that many have one.
_MOST = 4


class Graph:
    """The functions of `vllm/v1/worker/gpu` and of some modules beside it, and the calls between them.

    A method of a class stands for those that override it, too: which one runs is known at run time.
    """

    def __init__(self, store: TreeStore, reader: Reader, tree: str, also: Iterable[str]) -> None:
        folder = store.below(tree, FOLDER) if store.is_folder(tree, FOLDER) else ()
        paths = {p for p, _ in folder if p.endswith(b".py") and not p.startswith(_KUNLUN)}
        paths |= {p.encode() for p in also if store.get(tree, p.encode()) is not None}
        self.files: dict[str, Facts] = {}
        for path in sorted(paths):
            facts = reader.at(tree, path)
            if facts is not None:
                self.files[path.decode(errors="replace")] = facts

    def function(self, symbol: Symbol) -> Function | None:
        facts = self.files.get(symbol[0])
        return None if facts is None else facts.functions.get(symbol[1])

    @cached_property
    def _classes(self) -> dict[str, list[tuple[str, Class]]]:
        """Classes by their bare name."""
        found: dict[str, list[tuple[str, Class]]] = {}
        for path, facts in self.files.items():
            for cls in facts.classes.values():
                found.setdefault(cls.name.rpartition(".")[2], []).append((path, cls))
        return found

    @cached_property
    def _methods(self) -> dict[str, list[Symbol]]:
        """Methods by their bare name."""
        found: dict[str, list[Symbol]] = {}
        for path, facts in self.files.items():
            for name in facts.functions:
                owner, _, bare = name.rpartition(".")
                if owner in facts.classes:
                    found.setdefault(bare, []).append((path, name))
        return found

    @cached_property
    def _derived(self) -> dict[str, set[str]]:
        """The bare names of the classes on top of each, at any depth."""
        direct: dict[str, set[str]] = {}
        for name, found in self._classes.items():
            for _, cls in found:
                for base in cls.bases:
                    direct.setdefault(base.split("[")[0].rpartition(".")[2], set()).add(name)
        closed: dict[str, set[str]] = {}
        for base in direct:
            todo, seen = [base], set[str]()
            while todo:
                for each in direct.get(todo.pop(), ()):
                    if each not in seen:
                        seen.add(each)
                        todo.append(each)
            closed[base] = seen
        return closed

    def _bases(self, name: str) -> Iterator[str]:
        """A class and those below it, nearest first."""
        todo, seen = [name], set[str]()
        while todo:
            at = todo.pop(0)
            if at in seen:
                continue
            seen.add(at)
            yield at
            for _, cls in self._classes.get(at, ()):
                todo += [base.split("[")[0].rpartition(".")[2] for base in cls.bases]

    def _method(self, cls: str, name: str, *, above: bool = False) -> list[Symbol]:
        """The methods that `cls().name` may be; `above`: those of the bases alone."""
        found: list[Symbol] = []
        for at in list(self._bases(cls))[1 if above else 0 :]:
            own = [
                (path, f"{c.name}.{name}")
                for path, c in self._classes.get(at, ())
                if self.function((path, f"{c.name}.{name}"))
            ]
            if own:
                found += own
                break
        if not above:
            for each in sorted(self._derived.get(cls, ())):
                found += [
                    (path, f"{c.name}.{name}") for path, c in self._classes.get(each, ())
                    if self.function((path, f"{c.name}.{name}"))
                ]  # fmt: skip
        return list(dict.fromkeys(found))

    def calls(self, symbol: Symbol) -> Iterator[tuple[Call, list[Symbol]]]:
        """The calls of a function in order, and what each may reach."""
        function = self.function(symbol)
        for call in sorted(function.calls, key=lambda c: c.line) if function is not None else ():
            yield call, self._reached(symbol, call)

    def _reached(self, symbol: Symbol, call: Call) -> list[Symbol]:
        path, name = symbol
        owner = name.rpartition(".")[0].rpartition(".")[2]
        parts = call.to.split(".")
        first, last = parts[0], parts[-1]
        if len(parts) == 1:
            return self._named(path, first)
        if not all(re.fullmatch(r"\w+|super\(\)", part) for part in parts):
            return []  # what a call or an item gives may be anything
        if first in ("self", "cls") and owner:
            if len(parts) == 2:
                return self._method(owner, last) or self._called(owner, last)
            kinds = self._made(owner, parts[1]) if len(parts) == 3 else []
            return [m for kind in kinds for m in self._method(kind, last)] or self._any(last)
        if first == "super()" and owner:
            return self._method(owner, last, above=True)
        if len(parts) == 2 and (named := self._named(path, first)):
            # A class's own: `InputBatch.make_dummy`.
            return [m for _, what in named for m in self._method(what.split(".")[0], last)]
        return self._module(path, first, last) or self._any(last)

    def _called(self, owner: str, attribute: str) -> list[Symbol]:
        """What runs when `self.attribute(...)` is an object that is called."""
        kinds = self._made(owner, attribute)
        return [m for kind in kinds for m in self._method(kind, "__call__") or self._method(kind, "forward")]

    def _named(self, path: str, name: str) -> list[Symbol]:
        """What a bare name is: of this module, or imported."""
        facts = self.files[path]
        if name in facts.functions:
            return [(path, name)]
        if name in facts.classes:
            return [(path, f"{name}.__init__")]
        for item in facts.imports:
            if item.name == name and item.what:
                where = f"{item.module.replace('.', '/')}.py"
                other = self.files.get(where)
                if other is not None and item.what in other.functions:
                    return [(where, item.what)]
                if other is not None and item.what in other.classes:
                    return [(where, f"{item.what}.__init__")]
        return []

    def _module(self, path: str, alias: str, name: str) -> list[Symbol]:
        for item in self.files[path].imports:
            if item.name == alias:
                where = f"{'/'.join(filter(None, (item.module.replace('.', '/'), item.what)))}.py"
                if where in self.files and name in self.files[where].functions:
                    return [(where, name)]
        return []

    def _made(self, owner: str, attribute: str) -> list[str]:
        """The classes that `self.attribute` may be, by what it is set to or annotated with."""
        found: list[str] = []
        for at in self._bases(owner):
            for path, cls in self._classes.get(at, ()):
                for each in cls.attributes:
                    if each.name == attribute:
                        found += self._kinds(path, [*each.kinds, f"type {each.annotation}"])
        return list(dict.fromkeys(found))

    def _kinds(self, path: str, kinds: Sequence[str]) -> Iterator[str]:
        for kind in kinds:
            how, _, text = kind.partition(" ")
            if how == "type":
                yield from (word for word in re.findall(r"\w+", text) if word in self._classes)
            elif how == "call":
                bare = text.rpartition(".")[2]
                if bare in self._classes:
                    yield bare
                for where, name in self._named(path, text):
                    made = self.function((where, name))
                    if made is not None:
                        yield from (word for word in re.findall(r"\w+", made.returns) if word in self._classes)

    def _any(self, name: str) -> list[Symbol]:
        found = self._methods.get(name, [])
        return found if len(found) <= _MOST else []

    def walk(self, start: Iterable[Symbol], stop: frozenset[Symbol] = frozenset()) -> list[Symbol]:
        """Everything that is reached from these, themselves included, each once; nothing beyond `stop`."""
        seen: dict[Symbol, None] = {}
        todo = list(start)
        while todo:
            at = todo.pop(0)
            if at in seen or at in stop:
                continue
            seen[at] = None
            todo += [symbol for _, reached in self.calls(at) for symbol in reached]
        return list(seen)
