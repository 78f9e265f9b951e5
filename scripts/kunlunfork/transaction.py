"""Changing a tree all or nothing: stage, journal, rename, lock.

The order of the steps is what makes a kill at any moment harmless:

1. pre-images and new files are written below the state folder; the tree is untouched.
2. one sync, then `journal.json` appears by a rename: from here the change can be finished or undone from disk alone.
3. each staged file is renamed over its target. A file is never written in place: it may be a hard link into the cache
   of uv or conda.
4. the lock appears by a rename (or goes, for a revert), the journal goes, then what is left over.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths, pycache
from kunlunfork.errors import ForkError
from kunlunfork.journal import PLAIN_STATE, PRE, STAGE, Change, Journal, write_file
from kunlunfork.paths import SYMLINK, Entry


def checkpoint(name: str) -> None:
    """Called before each step that a crash can fall into; tests replace it by one that kills the process."""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the tree at `folder` for this process; the kernel lets go when the process ends, however it ends.

    Raises:
        ForkError: another process holds it.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise ForkError(f"{folder} cannot be opened", found=e.strerror or str(e), expected="a folder") from e
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise ForkError(
                f"another kunlunfork works on {folder}", fix="wait for it to end, then run the command again"
            ) from e
        yield
    finally:
        os.close(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        # One call for all staged files: an fsync each costs 0.2 ms and more. syncfs is Linux's; os.sync is anyone's.
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        if syncfs is None or syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def _replace(path: Path, data: bytes) -> None:
    """Put a file of the state folder in place by a rename."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    write_file(temporary, data, paths.REGULAR, journals.fresh_perm(paths.REGULAR))
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def check_parents(root: Path, path: bytes) -> None:
    """Refuse a path that passes through a symbolic link or a file, or that lies on another file system.

    Raises:
        ForkError: as said; the link is named.
    """
    parts = path.split(b"/")[:-1]
    device = root.stat().st_dev
    for i in range(1, len(parts) + 1):
        parent = paths.on_disk(root, b"/".join(parts[:i]))
        try:
            st = parent.lstat()
        except FileNotFoundError:
            return
        if parent.is_symlink():
            raise ForkError(
                f"{parent} is a symbolic link",
                found=f"-> {parent.readlink()}",
                expected="a folder: the fork never writes through a link",
                fix=f"name the real tree: --in-place {parent.resolve().parent}",
            )
        if not parent.is_dir():
            raise ForkError(f"{parent} is in the way", found="a file", expected="a folder")
        if st.st_dev != device:
            raise ForkError(
                f"{parent} lies on another file system than {root}", expected="one file system for the tree"
            )


def new_folders(root: Path, changes: tuple[Change, ...]) -> tuple[bytes, ...]:
    """The folders that these changes need and that are not there, outer ones first."""
    wanted: set[bytes] = set()
    for change in changes:
        parts = change.path.split(b"/")[:-1] if change.after is not None else []
        wanted.update(b"/".join(parts[:i]) for i in range(1, len(parts) + 1))
    return tuple(sorted(f for f in wanted if not paths.on_disk(root, f).exists()))


def _stored(state: Path, entry: Entry) -> bytes | None:
    """The bytes of an entry from the state folder: a pre-image, or staged."""
    for file in (state / PRE / entry.blob, state / STAGE / entry.blob):
        if file.is_file() and not file.is_symlink():
            data = file.read_bytes()
            if paths.blob_id(data) == entry.blob:
                return data
    return None


def execute(root: Path, state: Path, journal: Journal) -> None:
    """Carry out a change from its beginning. The caller holds `exclusive(root)`.

    On an error the tree is put back as it was; after a kill, `recovery.recover` does it.

    Raises:
        ForkError: no space, no permission, or a path that may not be written; the tree is as before.
    """
    fresh_state = not state.exists()
    try:
        for change in journal.changes:
            check_parents(root, change.path)
        _stage(state, journal)
        checkpoint("journal")
        _replace(state / journals.NAME, journals.dump(journal))
    except (OSError, ForkError, KeyboardInterrupt) as e:
        # Best effort: what stays is told by status as left over and removed by the next command.
        with contextlib.suppress(OSError):
            if state.is_dir():
                drop_leftovers(state, journal.old_lock)
                if fresh_state:
                    (state / journals.IGNORE).unlink(missing_ok=True)
                    state.rmdir()
        if isinstance(e, OSError):
            raise os_error(root, e, "nothing was changed") from e
        raise
    try:
        finish(root, state, journal)
    except (OSError, KeyboardInterrupt) as e:
        try:
            undo(root, state, journal)
        except OSError as again:
            raise os_error(
                root,
                again,
                "the change is half done; run `kunlunfork status` and then revert or apply when that is mended",
            ) from e
        if isinstance(e, KeyboardInterrupt):
            raise
        raise os_error(root, e, "everything was put back") from e


def os_error(root: Path, e: OSError, state: str) -> ForkError:
    at = f" ({os.fsdecode(e.filename)})" if e.filename else ""
    return ForkError(
        f"{root} cannot be changed; {state}",
        found=f"{e.strerror or e}{at}",
        expected="a tree that this user may write, with space for the changed files",
        fix="give the user the right, or make space, and run the command again",
    )


def _stage(state: Path, journal: Journal) -> None:
    pre, stage = state / PRE, state / STAGE
    checkpoint("state folder")
    # stage/ comes first and goes first: a state folder with stage/, but no lock and no journal, is one of a process
    # that was killed before it changed anything. Pre-images alone would mean that a lock was lost.
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    checkpoint("pre folder")
    pre.mkdir(exist_ok=True)
    if state.name == PLAIN_STATE:
        journals.hide(state)
    keep = journal.lock.pre_blobs() if journal.lock is not None else set()
    for blob, data in journal.data.items():
        checkpoint("stage")
        target = pre / blob if blob in keep else stage / blob
        if blob in keep and _stored(state, Entry(paths.REGULAR, blob)) is not None and target.exists():
            continue
        target.unlink(missing_ok=True)
        write_file(target, data, paths.REGULAR, journals.fresh_perm(paths.REGULAR))
    for blob in {e.blob for c in journal.changes for e in (c.before, c.after) if e is not None}:
        if _stored(state, Entry(paths.REGULAR, blob)) is None:
            raise ForkError(f"the bytes of blob {blob} are missing in {state}", fix="kunlunfork verify shows the file")
    checkpoint("sync")
    _sync(state)


def _put(root: Path, state: Path, path: bytes, entry: Entry | None, perm: int | None) -> None:
    """Make `path` be `entry` by one rename or unlink; nothing to do where it is already."""
    target = paths.on_disk(root, path)
    have = paths.read_entry(root, path)
    if (have[0] if have else None) == entry and (
        entry is None or entry.mode == SYMLINK or perm is None or target.lstat().st_mode & 0o7777 == perm
    ):
        return
    if entry is None:
        checkpoint("unlink")
        target.unlink()
        return
    data = _stored(state, entry)
    if data is None:
        raise ForkError(f"the bytes of {target} are missing in {state}", found=f"no blob {entry.blob}")
    owner = target.lstat() if have else target.parent.stat()
    temporary = state / STAGE / "next"
    temporary.unlink(missing_ok=True)
    temporary.parent.mkdir(exist_ok=True)
    write_file(temporary, data, entry.mode, perm if perm is not None else journals.fresh_perm(entry.mode), owner)
    checkpoint("rename")
    temporary.replace(target)


def _drop_bytecode(root: Path, changes: tuple[Change, ...]) -> None:
    for change in changes:
        for stale in pycache.stale_bytecode(paths.on_disk(root, change.path)):
            checkpoint("bytecode")
            stale.unlink(missing_ok=True)


def _remove_folders(root: Path, folders: tuple[bytes, ...]) -> None:
    """Remove folders that the fork made, where nothing of anyone else is in them."""
    for folder in sorted(folders, reverse=True):
        full = paths.on_disk(root, folder)
        if full.is_symlink() or not full.is_dir():
            continue
        cached = full / "__pycache__"
        with contextlib.suppress(OSError):
            if cached.is_dir() and not cached.is_symlink():
                cached.rmdir()
        with contextlib.suppress(OSError):
            full.rmdir()


def _make_folders(root: Path, folders: tuple[bytes, ...]) -> None:
    for folder in folders:
        full = paths.on_disk(root, folder)
        if not full.is_dir():
            checkpoint("folder")
            full.mkdir()
            if os.geteuid() == 0:
                owner = full.parent.stat()
                os.chown(full, owner.st_uid, owner.st_gid)


def finish(root: Path, state: Path, journal: Journal) -> None:
    """Bring a change to its end; safe to run again from any point after the journal was written."""
    _make_folders(root, journal.made)
    for change in journal.changes:
        check_parents(root, change.path)
        _put(root, state, change.path, change.after, change.after_perm)
    _drop_bytecode(root, journal.changes)
    _check(root, journal)
    checkpoint("lock")
    if journal.lock is None:
        (state / locks.NAME).unlink(missing_ok=True)
        _remove_folders(root, journal.old_lock.folders if journal.old_lock is not None else ())
    else:
        gone = set(journal.old_lock.folders if journal.old_lock is not None else ()) - set(journal.lock.folders)
        _remove_folders(root, tuple(gone))
        _replace(state / locks.NAME, locks.dump(journal.lock))
    _clean(state, journal.lock)


def undo(root: Path, state: Path, journal: Journal) -> None:
    """Put a tree back as it was before the change; safe to run again."""
    had = journal.old_lock.folders if journal.old_lock is not None else ()
    _make_folders(root, had)
    for change in reversed(journal.changes):
        check_parents(root, change.path)
        _put(root, state, change.path, change.before, change.before_perm)
    _drop_bytecode(root, journal.changes)
    checkpoint("undo folders")
    _remove_folders(root, tuple(set(journal.made) - set(had)))
    if journal.old_lock is not None:
        checkpoint("undo lock")
        _replace(state / locks.NAME, locks.dump(journal.old_lock))
    else:
        (state / locks.NAME).unlink(missing_ok=True)
    _clean(state, journal.old_lock)


def _check(root: Path, journal: Journal) -> None:
    wrong = []
    for change in journal.changes:
        have = paths.read_entry(root, change.path)
        if (have[0] if have else None) != change.after:
            wrong.append(paths.show(change.path))
    if wrong:
        raise OSError(f"{', '.join(wrong[:3])} did not keep the bytes that were written")


def drop_leftovers(state: Path, lock: locks.Lock | None) -> None:
    """Delete what neither the lock nor a revert needs."""
    keep = lock.pre_blobs() if lock is not None else set()
    pre = state / PRE
    if pre.is_dir():
        for file in sorted(pre.iterdir()):
            if file.name not in keep:
                checkpoint("drop pre-image")
                file.unlink(missing_ok=True)
        if lock is None:
            pre.rmdir()
    for name in (locks.NAME, journals.NAME):
        (state / f"{name}.new").unlink(missing_ok=True)
    checkpoint("drop stage")
    if (state / STAGE).exists():
        shutil.rmtree(state / STAGE)


def _clean(state: Path, lock: locks.Lock | None) -> None:
    # The journal goes first: once a pre-image that only the other direction needs is gone, there is no way back.
    checkpoint("end")
    (state / journals.NAME).unlink(missing_ok=True)
    checkpoint("clean")
    drop_leftovers(state, lock)
    if lock is None:
        checkpoint("remove state")
        (state / journals.IGNORE).unlink(missing_ok=True)
        state.rmdir()


def collect_data(*sources: Mapping[bytes, tuple[Entry, bytes] | None]) -> dict[str, bytes]:
    """blob id -> bytes of all entries of these mappings."""
    return {value[0].blob: value[1] for files in sources for value in files.values() if value is not None}
