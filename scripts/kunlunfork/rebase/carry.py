"""One patch onto one release: the merge, what is checked of it, and what becomes of each hunk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kunlunfork import paths
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.rebase import anchor, blocks, check, merge, outcome, renames, scope
from kunlunfork.rebase.align import Aligned, Aligner
from kunlunfork.rebase.blocks import Blocks
from kunlunfork.rebase.merge import BASE, OURS, THEIRS, Merged
from kunlunfork.rebase.moved import Moved
from kunlunfork.rebase.outcome import Conflict, HunkFate, Outcome
from kunlunfork.rebase.treestore import Between, Effect, TreeStore
from kunlunfork.scopes import is_python


@dataclass(frozen=True)
class Change:
    """A patch as the trees before and after it, on the release that it was carried to."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Resolution:
    """What a person made of a conflict: each file, None where it goes. `how` says where that is known from."""

    files: Mapping[bytes, Entry | None]
    how: str


Known = Callable[[Conflict], Resolution | None]


@dataclass(frozen=True)
class Carried:
    """A patch on the new release. `tree` has what could be merged; all of the patch where there is no conflict."""

    tree: str
    outcome: Outcome


@dataclass(frozen=True)
class _File:
    """What the patch did to one file, and what the merge made of it."""

    path: bytes
    old: Entry | None
    ours: Entry | None
    new: Entry | None
    merged: Entry | None

    def versions(self, store: TreeStore) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Old, ours, new and merged, where all four are files."""
        every = (self.old, self.ours, self.new, self.merged)
        if any(entry is None or entry.mode == SYMLINK for entry in every):
            return None
        old, ours, new, merged = (store.blob(entry.blob) for entry in every if entry is not None)
        return old, ours, new, merged


class Carrier:
    """Carries patches one step, from the tree of a release to that of another.

    Args:
        old, new: the trees of the two releases.
        version: the new one.
        renamed: what is said of where files went, as in `Pin.renames`.
        known: gives what is known of a conflict.
    """

    def __init__(
        self, store: TreeStore, made: Blocks, old: str, new: str, version: str, renamed: Mapping[bytes, bytes],
        known: Known,
    ) -> None:  # fmt: skip
        self._store = store
        self._blocks = made
        self._version = version
        self._known = known
        self._names = renames.scopes(renamed)
        release = Between(store, old, new)
        self._aligner = Aligner(store, release, version, renamed)
        self._moved = Moved(store, release)

    def carry(self, change: Change, now: str) -> Carried:
        """Do to the tree `now` what a patch does to the tree before it.

        Raises:
            ForkError: git fails.
        """
        store = self._store
        effect = store.effect(change.before, change.after)
        if all(store.get(now, path) == was and not store.is_folder(now, path) for path, (was, _) in effect.items()):
            tree = store.replace(now, {path: becomes for path, (_, becomes) in effect.items()})
            if all(path in store.effect(now, tree) for path in effect):
                fates = [f for p, made in self._blocks.of(effect).items() for f in blocks.fates(p, made, made)]
                return Carried(tree, Outcome(change.name, self._version, outcome.UNCHANGED, tuple(fates)))
        aligned = self._aligner.align(change.before, change.after, effect, now)
        at_stake = [*store.effect(aligned.base, aligned.theirs), *aligned.origin]
        sides = (aligned.base, aligned.ours, aligned.theirs)
        merged = merge.trees(store, *(merge.restricted(store, side, at_stake) for side in sides))
        return self._settle(change, effect, now, aligned, merged)

    def _settle(self, change: Change, effect: Effect, now: str, aligned: Aligned, merged: Merged) -> Carried:
        store = self._store
        files = self._files(aligned, merged)
        conflicts = [*aligned.conflicts, *self._conflicts(files, merged)]
        how = list(aligned.how)
        made: dict[bytes, Entry | None] = {}
        left: list[Conflict] = []
        for conflict in conflicts:
            settled, said = self._resolve(conflict, now)
            if settled is None:
                left.append(conflict)
            else:
                made |= settled
                how.append(said)
        at_stake = {conflict.path for conflict in conflicts}
        clean = {f.path: f.merged for f in files if f.path not in at_stake}
        # A file that the patch renames goes from its old name.
        gone = {old: None for new, old in aligned.origin.items() if new not in at_stake or new in made}
        tree = store.replace(now, {**gone, **clean, **made})
        fates = self._fates(aligned, tree, {c.path for c in left}, made)
        kind = self._kind(effect, now, tree, fates, how, aligned, left)
        proof = (
            self._proof([aligned.moves.get(path, path) for path in effect], tree) if kind == outcome.UPSTREAMED else ()
        )
        moves = tuple(sorted(aligned.moves.items()))
        return Carried(
            tree, Outcome(change.name, self._version, kind, tuple(fates), moves, tuple(how), proof, tuple(left))
        )

    def _files(self, aligned: Aligned, merged: Merged) -> list[_File]:
        store = self._store
        files = []
        for path, (old, ours) in store.effect(aligned.base, aligned.theirs).items():
            files.append(_File(path, old, ours, store.get(aligned.ours, path), store.get(merged.tree, path)))
        for new in aligned.origin:
            # Renamed and not changed otherwise: no difference once the names are the same.
            if all(file.path != new for file in files):
                entry = store.get(aligned.base, new)
                files.append(_File(new, entry, entry, store.get(aligned.ours, new), store.get(merged.tree, new)))
        return files

    def _conflicts(self, files: list[_File], merged: Merged) -> list[Conflict]:
        found = []
        for file in files:
            stages = merged.stages.get(file.path)
            kinds = merged.kinds.get(file.path, ())
            others = [p for p in merged.stages if p.startswith(file.path + b"~")]
            if stages is not None or kinds or others:
                beside = (kind for other in others for kind in merged.kinds.get(other, ()))
                found.append(self._class_of(file, stages or {}, (*kinds, *beside)))
                continue
            why = self._distrust(file)
            if why is not None:
                found.append(Conflict(file.path, outcome.SCOPE, why, file.old, file.new, file.ours, merged=file.merged))
        return found

    def _class_of(self, file: _File, stages: Mapping[int, Entry], kinds: tuple[str, ...]) -> Conflict:
        version = self._version
        entries = [e for e in (file.old, file.new, file.ours) if e is not None]
        text = " ".join(kinds)
        if "directory" in text:
            kind, why = outcome.FILE_DIRECTORY, f"a file on one side is a folder on the other in vLLM {version}"
        elif len({e.mode for e in entries}) > 1 and any(e.mode == SYMLINK for e in entries):
            kind, why = outcome.MODE, "a file on one side is a symbolic link on the other"
        elif any(b"\0" in self._store.blob(e.blob)[:8000] for e in entries if e.mode != SYMLINK):
            kind, why = outcome.BINARY, f"a binary file that patch and vLLM {version} both change"
        elif BASE not in stages and OURS in stages and THEIRS in stages:
            kind, why = outcome.ADD_ADD, f"the patch adds it, and vLLM {version} has one of its own"
        elif THEIRS not in stages:
            kind, why = outcome.MODIFY_DELETE, f"the patch deletes it, and vLLM {version} changed it"
        elif OURS not in stages:
            kind, why = outcome.MODIFY_DELETE, f"vLLM {version} deleted it"
        elif not kinds or "content" in text:
            kind, why = outcome.CONTENT, f"patch and vLLM {version} change the same lines"
        else:
            kind, why = outcome.MODE, f"patch and vLLM {version} change its mode"
        return Conflict(file.path, kind, why, file.old, file.new, file.ours)

    def _distrust(self, file: _File) -> str | None:
        """Why a clean merge of a Python file is not to be trusted."""
        if not is_python(file.path) or file.new == file.old:
            return None
        versions = file.versions(self._store)
        if versions is None:
            return None
        old, ours, new, merged = versions
        return _checked(file.path, self._named(file.path, old), self._named(file.path, ours), new, merged)

    def _named(self, path: bytes, data: bytes) -> bytes:
        """A file with the names of classes and functions that upstream has given them since, as far as that is said."""
        return renames.rename_scopes(data, self._names[path]) if path in self._names else data

    def _resolve(self, conflict: Conflict, now: str) -> tuple[dict[bytes, Entry | None] | None, str]:
        """The files that settle a conflict and how they were found; None where a person must."""
        known = self._known(conflict)
        if known is not None:
            return dict(known.files), f"{paths.show(conflict.path)}: {known.how}"
        if conflict.kind not in (outcome.CONTENT, outcome.SCOPE, outcome.MODIFY_DELETE) or not is_python(conflict.path):
            return None, ""
        old, ours, new = (self._store.data(entry) for entry in (conflict.old, conflict.ours, conflict.new))
        if old is None or ours is None:
            return None, ""
        shown = paths.show(conflict.path)
        old, ours = (self._named(conflict.path, data) for data in (old, ours))
        if new is not None and conflict.new is not None:
            merged = _anchored(conflict.path, old, ours, new)
            if merged is not None and _checked(conflict.path, old, ours, new, merged) is None and _sound(merged):
                entry = Entry(conflict.new.mode, self._store.put(merged))
                return {conflict.path: entry}, f"{shown}: placed by the statements around it"
        found = self._moved.place(conflict, old, ours, now)
        if found is None:
            return None, ""
        path, entry = found
        said = f"{shown}: what it edits moved to {paths.show(path)} in vLLM {self._version}"
        return {conflict.path: conflict.new, path: entry}, said

    def _fates(
        self, aligned: Aligned, tree: str, left: set[bytes], made: Mapping[bytes, Entry | None]
    ) -> list[HunkFate]:
        store = self._store
        was = store.effect(aligned.base, aligned.theirs)
        now = {p: pair for p, pair in store.effect(aligned.ours, tree).items() if p in was or p in made}
        old, new = self._blocks.of(was), self._blocks.of(now)
        elsewhere = [p for p in made if p not in was]
        found: list[HunkFate] = []
        for path, before in old.items():
            if path in left:
                found += [HunkFate(path, block.line, None, outcome.CONFLICT) for block in before]
            elif path not in new and elsewhere:
                first = {p: new[p][0].line if p in new else None for p in elsewhere}
                target = elsewhere[0]
                found += [HunkFate(target, block.line, first[target], outcome.MERGED) for block in before]
            else:
                found += blocks.fates(path, before, new.get(path, ()))
        for conflict in aligned.conflicts:
            if conflict.path in left and conflict.path not in old:
                found.append(HunkFate(conflict.path, 0, None, outcome.CONFLICT))
        return found

    def _kind(
        self, effect: Effect, now: str, tree: str, fates: list[HunkFate], how: list[str], aligned: Aligned,
        left: list[Conflict],
    ) -> str:  # fmt: skip
        if left:
            return outcome.CONFLICT
        if tree == now and effect:
            return outcome.UPSTREAMED
        kinds = {fate.kind for fate in fates}
        if kinds & {outcome.UPSTREAMED, outcome.PARTLY}:
            return outcome.PARTLY
        if outcome.MERGED in kinds or how:
            return outcome.MERGED
        return outcome.MOVED if outcome.MOVED in kinds or aligned.moves else outcome.UNCHANGED

    def _proof(self, named: list[bytes], tree: str) -> tuple[str, ...]:
        lines = []
        for path in named:
            entry = self._store.get(tree, path)
            what = f"blob {entry.blob[:12]}" if entry is not None else "not there"
            lines.append(f"{paths.show(path)}: with the patch as vLLM {self._version} has it ({what})")
        return tuple(lines)


# A command computes a rebase before and after it takes a decision; most files are the same both times.
_checked = functools.lru_cache(maxsize=512)(scope.check)
_anchored = functools.lru_cache(maxsize=512)(anchor.merge)


def _sound(data: bytes) -> bool:
    return check.fault(data, python=True) is None
