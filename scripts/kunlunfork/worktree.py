"""What is edited in a git tree and not committed: said, or taken into the patch that changes the same file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kunlunfork import commits, gittree, messages, patchwrite, paths
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.fork import STAMP_PATH
from kunlunfork.history import History
from kunlunfork.messages import Text
from kunlunfork.objects import Repository
from kunlunfork.patchwrite import Effect

# No ids of commits: a commit of its own for the new patch, and for an overlay that has none yet.
_NEW, _OVERLAY = "new", "overlay"


def edits(repository: Repository, root: Path, head: str) -> Effect:
    """What differs between the commit `head` and the files in `root`, new ones included unless git ignores them."""
    found = patchwrite.effect(repository, head, gittree.worktree(root, repository))
    found.pop(STAMP_PATH, None)
    return found


def check_staged(repository: Repository, root: Path, head: str, edited: Effect) -> None:
    """Refuse what is staged and is not what the file is: only one of both could be taken.

    Raises:
        ForkError: (exit 3) there are such files.
    """
    differ = []
    for path, (was, now) in patchwrite.effect(repository, head, gittree.staged(root, repository)).items():
        have = edited[path][1] if path in edited else was
        if have != now and path != STAMP_PATH:
            differ.append(path)
    if differ:
        raise ForkError(
            f"{root} has files that are staged and were changed since, and --include-worktree takes files as they are",
            details=[f"{paths.show(path)}: what is staged would be lost" for path in sorted(differ)],
            fix=f"commit what is staged: git -C {shlex.quote(str(root))} commit; or stage the files: git add",
            exit_code=CONFLICT,
        )  # fmt: skip


def said(found: Effect) -> str:
    shown = ", ".join(paths.show(path) for path in sorted(found)[:5])
    return f"{shown} and {len(found) - 5} more" if len(found) > 5 else shown


def commit(repository: Repository, found: History, edited: Effect, known: frozenset[bytes], new: Text | None) -> str:
    """Commits on top of HEAD that put each edit where it belongs; returns the last one's id.

    An edit of a file that one patch changes joins that patch, a file that upstream does not have joins the overlay.

    Args:
        known: the paths that belong to the series.
        new: what a new patch for all edits of upstream's files says; None where there is to be none.

    Raises:
        ForkError: (exit 3) no patch changes the file, or several do.
    """
    owners: dict[bytes, list[str]] = {path: [] for path in edited}
    for group in found.groups:
        for path in patchwrite.effect(repository, group.before, group.after):
            if path in owners and not (path in known and group.is_overlay):
                owners[path].append(group.first.id)
    overlay = [group.first.id for group in found.groups if group.is_overlay]
    parts: dict[str, Effect] = {}
    lost = []
    for path, change in edited.items():
        if path not in known:
            to = overlay[-1] if overlay else _OVERLAY
        elif new is not None:
            to = _NEW
        elif len(owners[path]) == 1:
            to = owners[path][0]
        else:
            names = {g.first.id: g.patch or g.first.shown for g in found.groups}
            who = ", ".join(names[i] for i in owners[path])
            lost.append(f"{paths.show(path)}: " + (f"{who} change it" if who else "no patch changes it"))
            continue
        parts.setdefault(to, {})[path] = change
    if lost:
        raise ForkError(
            "edits that are not committed belong to no patch alone", details=lost,
            fix="commit them: git commit --fixup for a patch that is there, git commit for a new one",
            exit_code=CONFLICT,
        )  # fmt: skip
    at, tree = found.head.id, found.head.tree
    for to, part in parts.items():
        tree = _with(repository, tree, part)
        text = Text("kunlunfork", "kunlunfork@invalid", 0, "+0000", f"fixup! {to}", b"", ())
        if to == _OVERLAY:
            text = replace(text, subject="Overlay", fields=((messages.OVERLAY, found.version),))
        at = commits.write(repository, tree, at, new if to == _NEW and new is not None else text)
    return at


def _with(repository: Repository, tree: str, part: Effect) -> str:
    env: Mapping[str, str] = {"GIT_INDEX_FILE": str(repository.path / "edits-index")}
    repository.git("read-tree", tree, env=env)
    gone = [b"0 %s\t%s\0" % (b"0" * 40, path) for path, (_, now) in part.items() if now is None]
    new = [b"%o %s\t%s\0" % (e.mode, e.blob.encode(), path) for path, (_, e) in part.items() if e is not None]
    repository.git("update-index", "-z", "--add", "--index-info", stdin=b"".join([*gone, *new]), env=env)
    return repository.git("write-tree", env=env).decode().strip()
