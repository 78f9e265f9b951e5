"""The state folder of a tree: which names in it are ours, and how they go. What is not ours is never touched."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths, steps
from kunlunfork.errors import ForkError
from kunlunfork.journal import IGNORE, NEW, PRE, STAGE
from kunlunfork.lock import Lock
from kunlunfork.progress import Progress

# The file that is renamed over the next one of the tree.
NEXT = "next"

_BLOB = re.compile(r"[0-9a-f]{40}")
_UNFINISHED = tuple(name + NEW for name in (locks.NAME, journals.NAME, IGNORE))


def check(state: Path) -> None:
    """Refuse a state folder that is a link, or no folder: files would be deleted elsewhere.

    Raises:
        ForkError: as said, for `pre` and `stage` in it too.
    """
    for folder in (state, state / PRE, state / STAGE):
        link = os.path.islink(folder)  # noqa: PTH114  (these never raise)
        if not link and (os.path.isdir(folder) or not os.path.lexists(folder)):  # noqa: PTH112
            continue
        raise ForkError(
            f"{folder} is no folder of kunlunfork",
            found=f"a symbolic link to {folder.readlink()}" if link else "a file",
            expected="a folder, or nothing",
            fix=f"put the folder itself there, or if nothing was applied: rm {shlex.quote(str(folder))}",
        )


def stored(state: Path, blob: str) -> bytes | None:
    """The bytes of a blob that the state folder has, as a pre-image or staged; None where it has them not."""
    for file in (state / PRE / blob, state / STAGE / blob):
        try:
            data = paths.read_plain(file)
        except (OSError, ForkError):  # whoever needs the bytes says that they are missing
            continue
        if paths.blob_id(data) == blob:
            return data
    return None


def blobs(folder: Path) -> list[Path]:
    """The files in `pre` or `stage` that are ours; raises OSError."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if not e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if _BLOB.fullmatch(name)]


def is_leftover(state: Path, lock: Lock | None) -> bool:
    """Whether a process was killed before it wrote a journal, or after it was done with one.

    Raises:
        ForkError: the folder holds pre-images, but the lock that says whose they are is gone.
    """
    try:
        names = {entry.name for entry in state.iterdir()} if state.is_dir() else None
        if names is None:
            return False
        stage = state / STAGE
        staged = STAGE in names and (bool(blobs(stage)) or os.listdir(stage) in ([], [NEXT]))  # noqa: PTH208
        if staged or names.intersection(_UNFINISHED):
            return True
        if lock is not None:
            return False
        if blobs(state / PRE):
            raise lost(state, locks.NAME, ", ".join(sorted(names)[:4]))
        return not names - {IGNORE}
    except OSError as e:
        raise ForkError(f"{state} cannot be read", found=e.strerror or str(e)) from e


def lost(state: Path, what: str, found: str) -> ForkError:
    return ForkError(
        f"{state} has lost its {what.removesuffix('.json')}",
        found=found,
        expected=f"{what}, which says what the fork changed and how to undo it",
        fix=f"restore {what}, or put a fresh vLLM in place and delete {shlex.quote(str(state))}",
    )


def drop(state: Path, lock: Lock | None) -> list[str]:
    """Delete what neither the lock nor a revert needs; without a lock, the folder too.

    Returns:
        The names because of which the folder had to stay.

    Raises:
        OSError: something cannot be deleted; what is left says that the folder is left over.
    """
    keep = lock.pre_blobs() if lock is not None else set()
    for file in blobs(state / PRE):
        if file.name not in keep:
            steps.checkpoint("drop pre-image")
            file.unlink(missing_ok=True)
    if lock is None:
        _remove(state / PRE)
    for name in _UNFINISHED:
        (state / name).unlink(missing_ok=True)
    # The stage goes last: without lock and journal it is what tells a left over folder from one that lost its lock.
    steps.checkpoint("drop stage")
    for file in (*blobs(state / STAGE), state / STAGE / NEXT):
        file.unlink(missing_ok=True)
    _remove(state / STAGE)
    if lock is not None:
        return []
    steps.checkpoint("remove state")
    others = sorted({entry.name for entry in state.iterdir()} - {IGNORE})
    if not others:
        (state / IGNORE).unlink(missing_ok=True)
        state.rmdir()
    return others


def _remove(folder: Path) -> None:
    """Remove a folder unless something of someone else is in it."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def tidy(state: Path, lock: Lock | None, progress: Progress) -> None:
    """`drop` where the work itself is done: what cannot be deleted is a warning."""
    try:
        others = drop(state, lock)
    except OSError as e:
        at = os.fsdecode(e.filename) if e.filename else str(state)
        progress.warn(f"{at} cannot be removed ({e.strerror or e}); the next apply or revert tries again")
        return
    if others:
        progress.warn(f"{state} stays: {', '.join(paths.show(os.fsencode(n)) for n in others[:5])} is not kunlunfork's")


def end(state: Path, lock: Lock | None, progress: Progress) -> None:
    """The end of a change that is complete on disk: the journal goes, then what is left over."""
    # The journal goes first: once a pre-image that only the other direction needs is gone, there is no way back.
    steps.checkpoint("end")
    journal = state / journals.NAME
    try:
        journal.unlink(missing_ok=True)
    except OSError as e:
        why = e.strerror or str(e)
        progress.warn(f"the change is complete, but {journal} cannot be removed ({why}); run the command once more")
        return
    steps.checkpoint("clean")
    tidy(state, lock, progress)
