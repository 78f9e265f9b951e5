"""What a killed process left in a tree: understood, finished or undone."""

from __future__ import annotations

import shutil
from pathlib import Path

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.journal import STAGE, Journal
from kunlunfork.transaction import drop_leftovers, finish, os_error, undo


def leftover(state: Path, lock: locks.Lock | None) -> bool:
    """Whether a process was killed before it wrote a journal, or after it was done with one: nothing is half changed.

    Raises:
        ForkError: the folder holds pre-images, but the lock that says whose they are is gone.
    """
    if not state.is_dir():
        return False
    names = {entry.name for entry in state.iterdir()} - {journals.IGNORE}
    if lock is not None:
        return bool(names & {STAGE, f"{locks.NAME}.new", f"{journals.NAME}.new"})
    if STAGE in names or not names:
        return True
    raise ForkError(
        f"{state} has lost its lock",
        found=", ".join(sorted(names)[:4]),
        expected=f"{locks.NAME}, which says what the fork changed and how to undo it",
        fix=f"restore {locks.NAME}, or put a fresh vLLM in place and delete {state}",
    )


def recover(root: Path, state: Path, *, forward: bool) -> str | None:
    """Deal with what a killed process left. The caller holds `exclusive(root)`.

    Returns:
        What was done, for the user, or None where nothing was left over.

    Raises:
        ForkError: a file of the change is neither as before nor as after it: someone edited it since.
    """
    journal = journals.read(state)
    if journal is None:
        lock = locks.read(state)
        if not leftover(state, lock):
            return None
        if lock is None:
            shutil.rmtree(state)
        else:
            drop_leftovers(state, lock)
        return "a command that was killed before it changed anything left files behind; they were removed"
    strangers = edited(root, journal)
    if strangers:
        raise ForkError(
            f"a killed {journal.verb} left {root} half changed, and files were edited since",
            details=strangers,
            fix="put these files back (or move them away), then run the command again",
        )
    try:
        (finish if forward else undo)(root, state, journal)
    except OSError as e:
        raise os_error(root, e, "the change is still half done") from e
    return f"a killed {journal.verb} was {'finished' if forward else 'undone'}"


def edited(root: Path, journal: Journal) -> list[str]:
    """Paths of a journal that are neither as before nor as after."""
    found = []
    for change in journal.changes:
        have = paths.read_entry(root, change.path)
        if (have[0] if have else None) not in (change.before, change.after):
            found.append(paths.show(change.path))
    return found


def progress_of(root: Path, journal: Journal) -> tuple[int, int]:
    """(paths already changed, all paths) of a change under way."""
    done = 0
    for change in journal.changes:
        have = paths.read_entry(root, change.path)
        done += (have[0] if have else None) == change.after
    return done, len(journal.changes)
