"""What a killed process left in a tree: understood, finished or undone."""

from __future__ import annotations

from pathlib import Path

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths, statefolder, transaction
from kunlunfork.errors import ForkError
from kunlunfork.fork import STAMP_PATH
from kunlunfork.journal import PRE, STAGE, Journal
from kunlunfork.lock import Lock
from kunlunfork.progress import Progress

# A file of this size that equals one of the fork is the fork's. Smaller ones (empty, a license) have twins upstream.
_TELLING = 512


def leftover(root: Path, state: Path, lock: Lock | None) -> bool:
    """Whether a killed process left files in the state folder, but nothing half changed.

    Raises:
        ForkError: the lock or the journal is lost: something is changed and nothing says what.
    """
    if not statefolder.is_leftover(state, lock):
        return False
    # With a lock, every file is compared with it anyway. Without, the folder may only go if the tree bears no trace.
    traces = _traces(root, state) if lock is None else []
    if traces:
        shown = ", ".join(paths.show(p) for p in traces[:3])
        raise statefolder.lost(state, journals.NAME, f"{len(traces)} files of the fork in the tree, such as {shown}")
    return True


def _traces(root: Path, state: Path) -> list[bytes]:
    """Files of the fork that lie in a tree."""
    found = [STAMP_PATH] if paths.present(root, STAMP_PATH) is not None else []
    try:
        pre = {file.name for file in statefolder.blobs(state / PRE)}
        staged = {f.name: f.lstat().st_size for f in statefolder.blobs(state / STAGE) if f.name not in pre}
    except OSError as e:
        raise ForkError(f"{state} cannot be read", found=e.strerror or str(e)) from e
    sizes = {size for size in staged.values() if size >= _TELLING}
    for path in paths.walk(root, "vllm") if sizes else ():
        if paths.on_disk(root, path).lstat().st_size in sizes:
            entry = paths.present(root, path)
            if entry is not None and entry.blob in staged:
                found.append(path)
    return found


def recover(root: Path, state: Path, *, command: str, progress: Progress) -> str | None:
    """Deal with what a killed process left. The caller holds `exclusive(root)`.

    Args:
        command: apply or revert. Revert undoes a killed apply, apply undoes a killed revert; each finishes its own.

    Returns:
        What was done, for the user, or None where nothing was left over.

    Raises:
        ForkError: a file of the change is neither as before nor as after it (exit 3): someone edited it since.
    """
    statefolder.check(state)
    journal = journals.read(state)
    if journal is None:
        lock = locks.read(state)
        if not leftover(root, state, lock):
            return None
        statefolder.tidy(state, lock, progress)
        return "a command that was killed before it changed anything, or after it was done, had left files behind"
    transaction.refuse_edited(root, journal, transaction.command(root, command))
    forward = (journal.verb == "revert") == (command == "revert")
    try:
        (transaction.finish if forward else transaction.undo)(root, state, journal, progress)
    except OSError as e:
        raise transaction.os_error(root, e, "the change is still half done") from e
    return f"a killed {journal.verb} was {'finished' if forward else 'undone'}"


def progress_of(root: Path, journal: Journal) -> tuple[int, int]:
    """(paths already changed, all paths) of a change under way."""
    done = sum(paths.present(root, change.path) == change.after for change in journal.changes)
    return done, len(journal.changes)
