"""An edit whose function upstream moved to another file."""

from __future__ import annotations

import re

from kunlunfork import scopes
from kunlunfork.errors import ForkError
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.rebase import anchor, check
from kunlunfork.rebase.outcome import Conflict
from kunlunfork.rebase.treestore import Between, TreeStore

# More files that define a name than this: the name says nothing.
_MOST = 20


class Moved:
    """Looks through what a release changed."""

    def __init__(self, store: TreeStore, release: Between) -> None:
        self._store = store
        self._release = release

    def place(self, conflict: Conflict, old: bytes, ours: bytes, now: str) -> tuple[bytes, Entry] | None:
        """The one other file of the tree `now` that the edit `old` -> `ours` belongs to by now, with the edit."""
        names = _names(old, ours)
        if not names:
            return None
        store = self._store
        defined = re.compile(
            rb"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(?:%s)\b" % b"|".join(map(re.escape, names)), re.MULTILINE
        )
        candidates: dict[bytes, bytes] = {}
        entries: dict[bytes, Entry] = {}
        for path, (was, becomes) in self._release.items():
            if path == conflict.path or becomes is None or not scopes.is_python(path):
                continue
            entry = store.get(now, path)
            if entry is None or entry.mode == SYMLINK:
                continue
            data = store.blob(entry.blob)
            if not any(name in data for name in names):
                continue  # the pattern takes thirty times as long
            # It came there in this release: what was there before is another function of that name.
            if defined.search(data) and (was is None or not defined.search(store.blob(was.blob))):
                candidates[path], entries[path] = data, entry
        if not candidates or len(candidates) > _MOST:
            return None
        found = anchor.merge_moved(conflict.path, old, ours, candidates)
        if found is None:
            return None
        path, merged = found
        if check.fault(merged, python=True) is not None or merged == candidates[path]:
            return None
        return path, Entry(entries[path].mode, store.put(merged))


def _names(old: bytes, ours: bytes) -> list[bytes]:
    """The functions and classes that an edit lies in, without those around them."""
    start = 0
    a, b = old.split(b"\n"), ours.split(b"\n")
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    try:
        found = scopes.scope_of_lines(old, range(max(start, 1), len(a) - end + 2))
    except ForkError:
        return []
    return [name.rpartition(".")[2].encode() for name in found if name]
