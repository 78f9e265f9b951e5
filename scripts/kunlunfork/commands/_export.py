"""What the verbs that write into the clone share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kunlunfork import errors, exportfiles, gittree, paths
from kunlunfork.commands._options import content_for
from kunlunfork.console import Console, describe
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.export import Plan
from kunlunfork.sources.tree import has_git_state


def git_tree(tree: Path | None) -> Path:
    """The git tree that is named, or the one around the current folder (raises `ForkError`)."""
    from kunlunfork import target

    found = target.find(tree)
    if not has_git_state(found.root):
        raise ForkError(
            f"{found.root} is no git tree",
            expected="a tree that kunlunfork apply --git made",
        )
    return found.root


def clone_for(console: Console, repo: Path | None, root: Path) -> Content:
    """The clone that is written: named, around the current folder, or the one that the tree was made from.

    Raises:
        ForkError: there is none.
    """
    fork = content_for(console, repo, root)
    if not fork.clone:
        if os.path.lexists(gittree.state(root) / exportfiles.MADE_FROM):
            exportfiles.load(gittree.state(root))  # says what is wrong with it, if that is why
        raise ForkError(
            "there is no clone to write to", found="the content inside the installed package",
            expected="a clone of kunlunfork", fix="stand in a clone, or name it: --repo DIR",
        )  # fmt: skip
    return fork


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Say what the system says when there is no room for temporary files (raises `ForkError`)."""
    try:
        yield
    except OSError as e:
        raise ForkError(
            f"{e.filename or 'a temporary file'} cannot be read or written", found=e.strerror or str(e),
            expected="room for temporary files, and a tree that this user may read",
            fix="make room, or name another folder for temporary files: TMPDIR=DIR",
        ) from e  # fmt: skip


def finish(fork: Content, planned: Plan, check: bool, console: Console, carry_out: Callable[[], None]) -> int:
    """Carry a plan out, or with `check` only say what it would do."""
    root = planned.root
    for warning in planned.warnings:
        console.warn(warning)
    if hidden := exportfiles.ignored(fork.root, planned.writes):
        console.warn(f"git does not show these in {fork.root} (.gitignore): git add --force {' '.join(hidden)}")
    if planned.writes and not check:
        carry_out()
    result: dict[str, Any] = {
        "tree": str(root),
        "clone": str(fork.root),
        "version": planned.version,
        "written": [paths.to_text(paths.from_disk(w.path)) for w in planned.writes if w.data is not None],
        "deleted": [paths.to_text(paths.from_disk(w.path)) for w in planned.writes if w.data is None],
        "patches": [patch.name for patch in planned.patches],
        "notes": list(planned.notes),
    }

    def show() -> None:
        would = "would be " if check else ""
        for note in planned.notes:
            print(note)
        for write in planned.writes:
            done = "deleted" if write.data is None else "written"
            print(f"{paths.show(paths.from_disk(write.path))}: {would}{done}")
        if not planned.writes:
            print(f"{fork.root} has all that {root} has")

    if not check or not planned.writes:
        console.result(result, show)
        return errors.OK
    error = ForkError(
        f"{fork.root} lacks what {root} has", found=f"{len(planned.writes)} files would be written or deleted",
        fix="the same command without --check",
    )  # fmt: skip

    def show_error() -> None:
        show()
        print(describe(error))

    console.refused(result, error, show_error)
    return errors.USER
