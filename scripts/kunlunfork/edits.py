"""What somebody changed in a fork tree since the fork was applied."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from kunlunfork import paths
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.lock import Lock
from kunlunfork.overlay import OverlayFile
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.target import Target
from kunlunfork.transaction import command, rescue

Entries = Mapping[bytes, Entry | None]


def present(root: Path, lock: Lock) -> dict[bytes, Entry | None]:
    """What lies at each path of the lock."""
    return {path: paths.present(root, path) for path in lock.files}


def local_edits(root: Path, lock: Lock) -> list[str]:
    """Files of the lock that are no longer as the fork left them, each with what is wrong."""
    found = [f"{paths.show(folder)}: replaced by a link" for folder in paths.linked_folders(root, lock.files)]
    for path, entry in present(root, lock).items():
        post = lock.files[path].post
        if entry == post:
            continue
        if entry is None:
            what = "deleted"
        elif post is None:
            what = "is there again"
        else:
            what = "edited" if entry.blob != post.blob else "mode changed"
        found.append(f"{paths.show(path)}: {what}")
    return [*found, *(f"{paths.show(path)}: {what}" for path, (_, what) in _linked(root, lock).items() if what)]


def strangers(root: Path, lock: Lock, overlay: Mapping[bytes, OverlayFile]) -> list[str]:
    """Overlay files of the lock that are links to something else than `overlay`, which the lock says that they are."""
    found = []
    for path, (target, what) in _linked(root, lock).items():
        file = overlay.get(path)
        if what or (file is not None and target == os.fsencode(file.source.absolute())):
            continue
        have = paths.read_entry(Path("/"), os.path.realpath(target)[1:])
        if have is None or file is None or have[1] != file.data:
            found.append(f"{paths.show(path)}: links to {paths.show(target)}, which is not the clone's file")
    return found


def _linked(root: Path, lock: Lock) -> dict[bytes, tuple[bytes, str]]:
    """The overlay files that are links into a clone, as applied: by path the target, and what is wrong with it, if so.

    The overlay's own links are relative.
    """
    found = {}
    for path, held in lock.files.items():
        if held.role != "overlay" or held.post is None or held.post.mode != SYMLINK:
            continue
        have = paths.read_entry(root, path) if paths.present(root, path) == held.post else None
        if have is None or not have[1].startswith(b"/"):
            continue
        target = have[1]
        try:
            what = "" if stat.S_ISREG(os.stat(target).st_mode) else "no file"  # noqa: PTH116  (bytes)
        except OSError:
            what = "gone"
        found[path] = (target, what and f"links to {paths.show(target)}, which is {what}")
    return found


def endangered(root: Path, lock: Lock, have: Entries, after: Entries | None = None) -> list[bytes]:
    """What a change of the tree would lose: bytes that are neither the fork's nor upstream's; links for folders.

    A missing file is no loss, nor is one that is upstream's again, or that is as the change leaves it (`after`).
    """
    after = after or {}
    return paths.linked_folders(root, lock.files) or [
        path for path, held in lock.files.items() if have[path] not in (held.post, held.pre, None, after.get(path))
    ]


def way_out(target: Target, lock: Lock, danger: Sequence[bytes], verb: str) -> str:
    """The commands that keep the edits and then do it."""
    if any(lock.files[path].role == "record" for path in danger if path in lock.files):
        # Without its RECORD an installed tree is none.
        return f"pip install --force-reinstall --no-deps {target.info.dist_name}=={lock.base_version}"
    again = command(target.root, verb)
    return rescue(target.root, danger, again) if danger else again


def refuse(target: Target, lock: Lock, have: Entries, verb: str, after: Entries | None = None) -> None:
    """Refuse to lose edits (raises `ForkError` with the list, exit 3)."""
    danger = endangered(target.root, lock, have, after)
    if danger:
        raise ForkError(
            f"{target.root} has edits that {verb} would lose",
            details=local_edits(target.root, lock),
            found=f"{len(danger)} files or folders are not as they were applied",
            expected="the files as the lock has them",
            fix=way_out(target, lock, danger, verb),
            exit_code=CONFLICT,
        )
