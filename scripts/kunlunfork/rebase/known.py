"""How conflicts are settled that were seen before: in this rebase, or in one whose resolutions the clone keeps."""

from __future__ import annotations

from pathlib import Path

from kunlunfork import paths
from kunlunfork.paths import Entry
from kunlunfork.rebase import resolutions
from kunlunfork.rebase.carry import Resolution
from kunlunfork.rebase.outcome import Conflict
from kunlunfork.rebase.session import Decision, Session, State, key_of
from kunlunfork.rebase.treestore import TreeStore


class Known:
    """What is known of conflicts: what was decided in this rebase, then what the clone remembers."""

    def __init__(self, store: TreeStore, session: Session | None, state: State, root: Path) -> None:
        self._store, self._session = store, session
        self._decided = {decision.key: decision for decision in state.decisions}
        self._remembered = resolutions.load(root)

    def get(self, conflict: Conflict) -> Resolution | None:
        decision = self._decided.get(key_of(conflict))
        if decision is not None:
            return self.decided(decision)
        known = self._remembered.get(conflict.key)
        return None if known is None else resolutions.replay(self._store, conflict, known)

    def decided(self, decision: Decision) -> Resolution:
        assert self._session is not None
        files = {}
        for path, entry in decision.files.items():
            made = None
            if entry is not None:
                made = Entry(entry[0], self._store.put(self._session.kept(entry[1])))
            files[paths.from_text(path)] = made
        return Resolution(files, "as it was resolved")

    def conflict(self, decision: Decision) -> Conflict:
        """The conflict that a decision is about, without its text."""
        kind, *sides, path = decision.key.split(" ", 4)
        entries = []
        for side in sides:
            mode, _, blob = side.partition("-")
            entries.append(None if side == "absent" else Entry(int(mode, 8), blob))
        old, new, ours = entries
        return Conflict(paths.from_text(path), kind, "", old, new, ours)
