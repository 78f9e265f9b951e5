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
import fcntl
import itertools
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths, pycache, statefolder, steps
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.journal import PLAIN_STATE, PRE, STAGE, Change, Journal, write_file
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.progress import Progress


class EditedMeanwhile(ForkError):
    """Someone saved a file of the tree between our look at it and our rename."""

    def __init__(self, root: Path, path: bytes) -> None:
        super().__init__(
            f"{paths.on_disk(root, path)} was edited while kunlunfork worked on {root}; the edit was kept",
            found="other bytes than a moment before",
            expected="a tree that nobody else changes meanwhile",
            fix=f"kunlunfork status {shlex.quote(str(root))}",
            exit_code=CONFLICT,
        )
        self.path = path


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
    import ctypes

    fd = os.open(folder, os.O_RDONLY)
    try:
        # One call for all staged files: an fsync each costs 0.2 ms and more. syncfs is Linux's; os.sync is anyone's.
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
        if syncfs is None or syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def check_parents(root: Path, path: bytes) -> None:
    """Refuse a path that passes through a symbolic link or a file, or that lies on another file system.

    Raises:
        ForkError: as said; the link is named.
    """
    device = root.stat().st_dev
    for folder in paths.parents(path):
        parent = paths.on_disk(root, folder)
        try:
            st = parent.lstat()
        except FileNotFoundError:
            return
        except OSError as e:
            raise ForkError(f"{parent} cannot be read", found=e.strerror or str(e)) from e
        if parent.is_symlink():
            raise ForkError(
                f"{parent} is a symbolic link",
                found=f"-> {parent.readlink()}",
                expected="a folder: the fork never writes through a link",
                fix="put the folder itself there, or take a fresh tree",
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
        wanted.update(paths.parents(change.path) if change.after is not None else ())
    return tuple(sorted(f for f in wanted if not paths.on_disk(root, f).exists()))


def execute(root: Path, state: Path, journal: Journal, progress: Progress) -> None:
    """Carry out a change from its beginning. The caller holds `exclusive(root)`.

    On an error the tree is put back as it was; after a kill, `recovery.recover` does it.

    Raises:
        ForkError: no space, no permission, a path that may not be written, or one that someone edits meanwhile; the
            tree is as before.
    """
    statefolder.check(state)
    try:
        for change in journal.changes:
            check_parents(root, change.path)
        _stage(state, journal)
        steps.checkpoint("journal")
        journals.replace_file(state / journals.NAME, journals.dump(journal))
    except (OSError, ForkError, KeyboardInterrupt) as e:
        # Best effort: what stays is told by status as left over and removed by the next command.
        with contextlib.suppress(OSError):
            if state.is_dir():
                (state / journals.NAME).unlink(missing_ok=True)
                statefolder.drop(state, journal.old_lock)
        if isinstance(e, OSError):
            raise os_error(root, e, "nothing was changed") from e
        raise
    try:
        finish(root, state, journal, progress)
    except (OSError, ForkError, KeyboardInterrupt) as e:
        if not os.path.lexists(state / journals.NAME):
            raise  # the change is complete, only cleaning up was interrupted: there is no way back, and no need
        _put_back(root, state, journal, e, progress)
        if isinstance(e, OSError):
            raise os_error(root, e, "everything was put back") from e
        raise


def _put_back(root: Path, state: Path, journal: Journal, e: BaseException, progress: Progress) -> None:
    if isinstance(e, EditedMeanwhile):
        # That file and those after it were not changed yet.
        reached = next(i for i, change in enumerate(journal.changes) if change.path == e.path)
        journal = replace(journal, changes=journal.changes[:reached])
    try:
        refuse_edited(root, journal, command(root, journal.verb))
        undo(root, state, journal, progress)
    except OSError as again:
        raise os_error(
            root, again, "the change is half done; kunlunfork status says how to go on when that is mended"
        ) from e


def edited(root: Path, journal: Journal) -> list[bytes]:
    """Paths of a journal with something that would be lost: not as before, not as after, and not missing."""
    return [c.path for c in journal.changes if paths.present(root, c.path) not in (c.before, c.after, None)]


def refuse_edited(root: Path, journal: Journal, command: str) -> None:
    """Raises `ForkError` (exit 3) where finishing or undoing the change would lose edits; `command` is tried again."""
    found = edited(root, journal)
    if found:
        raise ForkError(
            f"a killed or interrupted {journal.verb} left {root} half changed, and files were edited since",
            details=[paths.show(p) for p in found],
            found=f"{len(found)} files are neither as before nor as after it",
            expected="no edits that would be lost",
            fix=rescue(root, found, command),
            exit_code=CONFLICT,
        )


def command(root: Path, verb: str) -> str:
    """The command that applies to, or reverts, a tree that is there, installed ones included."""
    return f"kunlunfork {'revert' if verb == 'revert' else 'apply --in-place'} {shlex.quote(str(root))}"


def rescue(root: Path, files: Sequence[bytes], command: str) -> str:
    """The shell commands that move these files out of the way and then run `command`."""
    full = [str(paths.on_disk(root, p)) for p in files]
    free = itertools.chain([".mine"], (f".mine{n}" for n in itertools.count(2)))
    mine = next(end for end in free if not any(os.path.lexists(f + end) for f in full))
    names = [shlex.quote(f) for f in full]
    if len(names) == 1:
        return f"mv -n {names[0]} {names[0]}{mine} && {command}"
    return f'for f in {" ".join(names)}; do mv -n "$f" "$f{mine}"; done; {command}'


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
    steps.checkpoint("state folder")
    # The stage comes first and goes last: a state folder with stage/, but no lock and no journal, is one of a process
    # that was killed before it changed anything. Pre-images alone would mean that a lock was lost.
    for file in statefolder.blobs(stage):
        file.unlink()
    stage.mkdir(parents=True, exist_ok=True)
    steps.checkpoint("pre folder")
    pre.mkdir(exist_ok=True)
    if state.name == PLAIN_STATE:
        journals.hide(state)
    keep = journal.lock.pre_blobs() if journal.lock is not None else set()
    for blob, data in journal.data.items():
        steps.checkpoint("stage")
        target = pre / blob if blob in keep else stage / blob
        if statefolder.stored(state, blob) is not None and (blob not in keep or os.path.lexists(target)):
            continue
        target.unlink(missing_ok=True)
        write_file(target, data, paths.REGULAR, journals.fresh_perm(paths.REGULAR))
    for blob in {e.blob for c in journal.changes for e in (c.before, c.after) if e is not None}:
        if statefolder.stored(state, blob) is None:
            raise ForkError(f"the bytes of blob {blob} are missing in {state}", fix="run the command again")
    steps.checkpoint("sync")
    _sync(state)


def _put(root: Path, state: Path, change: Change, *, back: bool = False) -> None:
    """Make a path be what it is before or after the change by one rename or unlink; nothing to do where it is already.

    Raises:
        EditedMeanwhile: it is neither, so somebody's edit would be lost.
    """
    entry, perm = (change.before, change.before_perm) if back else (change.after, change.after_perm)
    target = paths.on_disk(root, change.path)
    have = paths.present(root, change.path)
    if have == entry and (
        entry is None or entry.mode == SYMLINK or perm is None or target.lstat().st_mode & 0o7777 == perm
    ):
        return
    if entry is None:
        steps.checkpoint("unlink")
        _expect(root, change)
        target.unlink(missing_ok=True)
        return
    data = statefolder.stored(state, entry.blob)
    if data is None:
        raise ForkError(
            f"the bytes of {target} are missing in {state}",
            found=f"no blob {entry.blob}",
            expected="what the killed command had put there",
            fix="the other way may still be open, revert instead of apply or apply instead of revert",
        )
    _make_folders(root, paths.parents(change.path))
    owner = target.lstat() if have else target.parent.stat()
    temporary = state / STAGE / statefolder.NEXT
    temporary.parent.mkdir(exist_ok=True)
    temporary.unlink(missing_ok=True)
    write_file(temporary, data, entry.mode, perm if perm is not None else journals.fresh_perm(entry.mode), owner)
    steps.checkpoint("rename")
    _expect(root, change)
    temporary.replace(target)


def _expect(root: Path, change: Change) -> None:
    # Looked at again, as late as can be: staging and its sync take long enough for an editor to save the file.
    if paths.present(root, change.path) not in (change.before, change.after, None):
        raise EditedMeanwhile(root, change.path)


def _drop_bytecode(root: Path, changes: tuple[Change, ...]) -> None:
    for change in changes:
        for stale in pycache.stale_bytecode(paths.on_disk(root, change.path)):
            steps.checkpoint("bytecode")
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


def _make_folders(root: Path, folders: Sequence[bytes]) -> None:
    for folder in folders:
        full = paths.on_disk(root, folder)
        if not full.is_dir():
            steps.checkpoint("folder")
            full.mkdir()
            if os.geteuid() == 0:
                owner = full.parent.stat()
                os.chown(full, owner.st_uid, owner.st_gid)


def finish(root: Path, state: Path, journal: Journal, progress: Progress) -> None:
    """Bring a change to its end; safe to run again from any point after the journal was written."""
    for change in journal.changes:
        check_parents(root, change.path)
        _put(root, state, change)
    _drop_bytecode(root, journal.changes)
    _check(root, journal)
    steps.checkpoint("lock")
    had = journal.old_lock.folders if journal.old_lock is not None else ()
    if journal.lock is None:
        (state / locks.NAME).unlink(missing_ok=True)
        _remove_folders(root, had)
    else:
        _remove_folders(root, tuple(set(had) - set(journal.lock.folders)))
        journals.replace_file(state / locks.NAME, locks.dump(journal.lock))
    statefolder.end(state, journal.lock, progress)


def undo(root: Path, state: Path, journal: Journal, progress: Progress) -> None:
    """Put a tree back as it was before the change; safe to run again."""
    had = journal.old_lock.folders if journal.old_lock is not None else ()
    for change in reversed(journal.changes):
        check_parents(root, change.path)
        _put(root, state, change, back=True)
    _drop_bytecode(root, journal.changes)
    steps.checkpoint("undo folders")
    _remove_folders(root, tuple(set(journal.made) - set(had)))
    if journal.old_lock is not None:
        steps.checkpoint("undo lock")
        _keep_lock(state / locks.NAME, locks.dump(journal.old_lock))
    else:
        (state / locks.NAME).unlink(missing_ok=True)
    statefolder.end(state, journal.old_lock, progress)


def _keep_lock(file: Path, data: bytes) -> None:
    # A change writes its lock last, so the old one is mostly there still; a full disk would not take it again.
    try:
        there = paths.read_plain(file) == data
    except (OSError, ForkError):
        there = False
    if not there:
        journals.replace_file(file, data)


def _check(root: Path, journal: Journal) -> None:
    wrong = [paths.show(c.path) for c in journal.changes if paths.present(root, c.path) != c.after]
    if wrong:
        raise OSError(f"{', '.join(wrong[:3])} did not keep the bytes that were written")


def collect_data(*sources: Mapping[bytes, tuple[Entry, bytes] | None]) -> dict[str, bytes]:
    """blob id -> bytes of all entries of these mappings."""
    return {value[0].blob: value[1] for files in sources for value in files.values() if value is not None}
