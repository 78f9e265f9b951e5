"""The facts of files in several trees; one blob is read once, and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from kunlunfork.cache import Cache
from kunlunfork.rebase.engine import Rung
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.symbols.facts import Facts
from kunlunfork.symbols.kept import Kept, pack
from kunlunfork.symbols.read import read


class Reader:
    """Raises (every method): ForkError where an object is missing."""

    def __init__(self, store: TreeStore, cache: Cache) -> None:
        self._store, self._kept = store, Kept(cache.root)
        self._known: dict[str, Facts] = {}

    def at(self, tree: str, path: bytes) -> Facts | None:
        """The facts of a file of a tree; None where there is none."""
        entry = self._store.get(tree, path)
        return None if entry is None else self.blob(entry.blob)

    def blob(self, name: str) -> Facts:
        found = self._known.get(name)
        if found is None:
            found = self._kept.facts(name)
            if found is None:
                found = read(self._store.blob(name))
                self._kept.put(name, pack(found))
            self._known[name] = found
        return found

    def versions(self, rungs: Sequence[Rung], old: bytes, new: bytes) -> tuple[tuple[str, Facts], ...]:
        """The facts of a file in each release on the way, at its old path or at its new one."""
        found = []
        for rung in rungs:
            facts = self.at(rung.tree, old) or (self.at(rung.tree, new) if new != old else None)
            found.append((rung.version, facts or Facts()))
        return tuple(found)
