"""The facts of files in several trees; one blob is read once, and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from kunlunfork import scopes
from kunlunfork.cache import Cache
from kunlunfork.diff import text
from kunlunfork.diff.text import FileDiff
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

    def headings(self, diff: FileDiff) -> tuple[str, ...]:
        """The classes and functions that each hunk changes something in, as qualified names; git shows the one before
        the hunk. '' for the module, and for what is not Python."""
        section = diff.section
        if not scopes.is_python(diff.path) or section.binary or section.new_blob is None or section.old_blob is None:
            return tuple("" for _ in section.hunks)
        spans = [_spans(self.blob(blob)) for blob in (section.old_blob, section.new_blob)]
        found = []
        for hunk in section.hunks:
            names: dict[str, None] = {}
            for change in text.changes(hunk):
                lines = [(0, n) for n in range(change.old_start, change.old_end)]
                lines += [(1, n) for n in range(change.new_start, change.new_end)]
                names |= dict.fromkeys(_innermost(spans[side], n + 1) for side, n in lines)
            found.append(", ".join(name for name in names if name))
        return tuple(found)


def _spans(facts: Facts) -> list[tuple[int, int, str]]:
    found = [(each.line, each.end, each.name) for each in facts.classes.values()]
    return sorted([*found, *((each.line, each.end, each.name) for each in facts.functions.values())])


def _innermost(spans: Sequence[tuple[int, int, str]], line: int) -> str:
    return next((name for start, end, name in reversed(spans) if start <= line <= end), "")
