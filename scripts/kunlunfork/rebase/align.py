"""Before a merge: the files of patch and release under the same names, and what no merge of lines can settle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kunlunfork import patchwrite, paths
from kunlunfork.paths import Entry
from kunlunfork.rebase import renames
from kunlunfork.rebase.outcome import MODIFY_DELETE, RENAME, RENAME_DELETE, Conflict
from kunlunfork.rebase.treestore import Between, Effect, TreeStore


@dataclass
class Aligned:
    """Trees to be merged, in which a file has one name: that of the result.

    `moves`: name before the patch -> name in the result. `origin`: name in the result -> name that the file has on the
    new release, where the patch renames it. `conflicts` are settled by no merge; their files are left out of it.
    """

    base: str
    ours: str
    theirs: str
    moves: dict[bytes, bytes] = field(default_factory=dict)
    origin: dict[bytes, bytes] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    how: list[str] = field(default_factory=list)


class Aligner:
    """Aligns the patches of one step: `release` is what differs between its two releases."""

    def __init__(self, store: TreeStore, release: Between, version: str, renamed: Mapping[bytes, bytes]) -> None:
        self._store = store
        self._release = release
        self._version = version
        self._renamed = renamed

    def align(self, before: str, after: str, effect: Effect, now: str) -> Aligned:
        """Align a patch, the change `effect` from `before` to `after`, with the tree `now` of the new release."""
        store = self._store
        result = Aligned(before, now, after)
        base: dict[bytes, Entry | None] = {}
        ours: dict[bytes, Entry | None] = {}
        theirs: dict[bytes, Entry | None] = {}
        own = self._own_renames(before, after, effect)
        for path, (was, becomes) in effect.items():
            if was is None:
                if becomes is not None and path not in own.values():
                    self._added(path, becomes, before, now, theirs, result)
                continue
            here = store.get(now, path)
            if store.is_folder(now, path):
                continue  # the merge says so
            target = own.get(path)
            if here is None and becomes is None and target is None:
                self._gone_on_both_sides(path, was, now, result)
                theirs[path] = was  # git would look for where it went
            elif here is None:
                self._gone(path, was, becomes, target, after, now, base, theirs, result)
            elif target is not None and store.get(now, target) is None:
                # The patch renames it: upstream's changes go along.
                base |= {path: None, target: was}
                ours |= {path: None, target: here}
                result.moves[path] = target
                result.origin[target] = path
        result.base, result.ours, result.theirs = (
            store.replace(tree, files) for tree, files in ((before, base), (now, ours), (after, theirs))
        )
        return result

    def _own_renames(self, before: str, after: str, effect: Effect) -> dict[bytes, bytes]:
        """Old name -> new name of the files that the patch renames."""
        if not (any(now is None for _, now in effect.values()) and any(was is None for was, _ in effect.values())):
            return {}
        found = patchwrite.renames(self._store.repository, before, after, effect)
        return {old: new for new, old in found.items()}

    def _gone(
        self, path: bytes, was: Entry, becomes: Entry | None, target: bytes | None, after: str, now: str,
        base: dict[bytes, Entry | None], theirs: dict[bytes, Entry | None], result: Aligned,
    ) -> None:  # fmt: skip
        """Upstream has no such file any more, and the patch changes it."""
        store, version = self._store, self._version
        new = self._where(path, was, now)
        ours = becomes if target is None else store.get(after, target)
        if new.target is not None and target is None:
            base |= {path: None, new.target: was}
            theirs |= {path: None, new.target: becomes}
            result.moves[path] = new.target
            result.how.append(f"{paths.show(path)} is {paths.show(new.target)} in vLLM {version} ({new.why})")
            return
        if new.target is not None:
            kind = RENAME
            why = f"the patch renames it to {paths.show(target or b'')}, vLLM {version} to {paths.show(new.target)}"
        elif target is not None:
            kind, why = RENAME_DELETE, f"the patch renames it to {paths.show(target)}, vLLM {version} deleted it"
        elif new.candidates:
            kind, why = RENAME, f"vLLM {version} does not have it; {new.why}"
        else:
            kind, why = MODIFY_DELETE, f"vLLM {version} deleted it; {new.why}"
        entry = None if new.target is None else store.get(now, new.target)
        at = target or new.target or path
        result.conflicts.append(Conflict(at, kind, why, was, entry, ours, candidates=new.candidates))
        # As it was before the patch: the rest of the patch can be merged.
        theirs[path] = was
        if target is not None:
            theirs[target] = None

    def _gone_on_both_sides(self, path: bytes, was: Entry, now: str, result: Aligned) -> None:
        new = self._where(path, was, now)
        if new.target is not None or new.candidates:
            why = f"the patch deletes it, and vLLM {self._version} may have renamed it; {new.why}"
            entry = None if new.target is None else self._store.get(now, new.target)
            at = new.target or path
            result.conflicts.append(Conflict(at, RENAME_DELETE, why, was, entry, None, candidates=new.candidates))

    def _where(self, path: bytes, was: Entry, now: str) -> renames.Found:
        said = renames.mapped(self._renamed, path)
        if said is not None and self._store.get(now, said) is not None:
            return renames.Found(said, (said,), "said by the map of renames")
        found = renames.infer(self._store, self._release, path, self._store.blob(was.blob))
        # An earlier patch, or the map, may have moved it away from there.
        gone = found.target is not None and self._store.get(now, found.target) is None
        return renames.Found(None, found.candidates, found.why) if gone else found

    def _added(
        self, path: bytes, entry: Entry, before: str, now: str, theirs: dict[bytes, Entry | None], result: Aligned
    ) -> None:
        """A file that the patch adds, perhaps to a folder that is no more."""
        said = renames.mapped(self._renamed, path)
        if said is not None and said != path:
            theirs |= {path: None, said: entry}
            result.moves[path] = said
            result.how.append(f"{paths.show(path)} is added as {paths.show(said)} (said by the map of renames)")
            return
        folder = path.rpartition(b"/")[0]
        if folder and self._store.is_folder(before, folder) and not self._store.is_folder(now, folder):
            why = f"the patch adds it to {paths.show(folder)}/, which vLLM {self._version} does not have any more"
            result.conflicts.append(Conflict(path, RENAME, why, None, None, entry))
            theirs[path] = None
