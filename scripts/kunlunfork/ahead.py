"""Files of a fork tree that are already as a newer fork makes them, as after `new-patch`: what upstream had there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork import fork as forks
from kunlunfork import originals, paths, transaction
from kunlunfork.fork import Fork
from kunlunfork.journal import fresh_perm, with_mode
from kunlunfork.lock import Lock
from kunlunfork.paths import REGULAR, SYMLINK, Entry
from kunlunfork.stages import Files
from kunlunfork.store import Store


@dataclass(frozen=True)
class Ahead:
    """By path: what upstream had there (with its bytes), and what is there now."""

    files: Mapping[bytes, tuple[tuple[Entry, bytes] | None, Entry | None]]

    @property
    def base(self) -> Files:
        return {path: pre for path, (pre, _) in self.files.items()}

    @property
    def now(self) -> dict[bytes, Entry | None]:
        return {path: now for path, (_, now) in self.files.items()}

    def perms(self, perms: Mapping[bytes, int | None]) -> dict[bytes, int | None]:
        """Upstream's permission bits, from those that are there now: what an edit did to them is taken back."""
        found: dict[bytes, int | None] = {}
        for path, (pre, now) in self.files.items():
            perm = perms.get(path)
            if pre is None or pre[0].mode == SYMLINK:
                found[path] = None
            elif now is None or now.mode == SYMLINK or perm is None:
                found[path] = fresh_perm(pre[0].mode)
            else:
                found[path] = perm if now.mode == pre[0].mode else with_mode(perm, pre[0].mode)
        return found


def find(fork: Fork, old: Lock | None, base: Files, store: Store, known: Files) -> Ahead:
    """What somebody changed in a fork tree where only a newer fork changes it too.

    Args:
        base: what lies at each of `fork.touched` now, or before `old`.
        known: upstream's files, as far as the caller knows them; of others the patches say what they were made from.
    """
    if old is None:
        return Ahead({})
    made_from = _made_from(fork)
    changed = forks.mode_changes(fork)
    found: dict[bytes, tuple[tuple[Entry, bytes] | None, Entry | None]] = {}
    for path in sorted(fork.touched - old.files.keys()):
        value = base.get(path)
        there = value[0] if value else None
        if path in known:
            pre = known[path]
        elif path not in made_from:
            continue
        else:
            pre = _value(made_from[path], value, store)
            if pre is None and made_from[path] is not None:
                continue  # nobody has its bytes; the caller refuses what does not fit
        own_mode = pre and there and pre[0].blob == there.blob and path not in known and path not in changed
        if (pre and pre[0]) != there and not own_mode:
            found[path] = (pre, there)
    return Ahead(found)


def settle(
    ahead: Ahead, fork: Fork, after: Mapping[bytes, Entry | None], base: Files, known: Files, root: Path
) -> Ahead:
    """Leave out files that only have permissions of their own (a checkout's); refuse what the fork does not make.

    Raises:
        ForkError: (exit 3) a file is neither upstream's nor what the fork makes of it.
    """
    kept = {}
    for path, (pre, now) in ahead.files.items():
        if after[path] == now:
            kept[path] = (pre, now)
        elif path in known or not (pre and now and pre[0].blob == now.blob):
            forks.check_base(fork, base, where=str(root))
            raise transaction.EditedMeanwhile(root, path)
    return replace(ahead, files=kept)


def own_folders(root: Path, ahead: Ahead, lock: Lock) -> tuple[bytes, ...]:
    """The folders of added files that hold nothing but the fork's: revert takes them away, like those of apply."""
    new = {folder for path, (pre, _) in ahead.files.items() if pre is None for folder in paths.parents(path)}
    found: list[bytes] = []
    for folder in sorted(new, key=len):
        outer = folder.rpartition(b"/")[0]
        if outer in found or (
            os.path.isdir(paths.on_disk(root, folder))  # noqa: PTH112  (never raises)
            and all(
                lock.files[p].pre is None if p in lock.files else False for p in paths.walk(root, os.fsdecode(folder))
            )
        ):
            found.append(folder)
    return tuple(found)


def _made_from(fork: Fork) -> dict[bytes, Entry | None]:
    """By path what upstream has there, as the patches and the overlay say it; an empty blob is one that they leave."""
    found: dict[bytes, Entry | None] = dict.fromkeys(fork.added)
    for patch in reversed(fork.patches):
        new = {file.new_path for file in patch.files if file.new_path is not None}
        old = {file.old_path: file for file in patch.files if file.old_path is not None}
        found |= dict.fromkeys(new - old.keys())
        for path, file in old.items():
            later = found.get(path)
            blob = file.old_blob or (later.blob if later is not None else "")
            found[path] = Entry(file.old_mode or (later.mode if later is not None else REGULAR), blob)
    return found


def _value(pre: Entry | None, there: tuple[Entry, bytes] | None, store: Store) -> tuple[Entry, bytes] | None:
    if pre is None:
        return None
    if there is not None and pre.blob in ("", there[0].blob):
        return Entry(pre.mode, there[0].blob), there[1]
    data = originals.from_store(store, pre.blob) if pre.blob else None
    return None if data is None else (pre, data)
