"""A git tree moves from the commits that the last `apply` made to those of the fork as it is now.

A killed move is done again: until the end HEAD is where it was, and each file is as one or the other commit has it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import commits, git, gittree, history, messages, paths, transaction
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.gittree import APPLIED, UPSTREAM
from kunlunfork.objects import Repository
from kunlunfork.paths import Entry
from kunlunfork.stages import Files

Entries = Mapping[bytes, Entry]


@dataclass(frozen=True)
class Move:
    """What was done: "updated" or "unchanged"; `notes` say what of the tree is not as apply made it."""

    action: str
    notes: tuple[str, ...] = ()


def move(root: Path, fork: Fork, before: Files, *, dry_run: bool) -> Move:
    """Put the commits of a newer fork in the place of the ones that the last `apply` made.

    Files, index and branch follow. The commits that were there stay in the reflog; files that no commit has stay.

    Args:
        before: what upstream has at each of `fork.touched`.

    Raises:
        ForkError: (exit 3) commits, edits, or files that git ignores would be lost; HEAD is not on the fork's history.
    """
    folder = gittree.git_dir(root)
    history.check_idle(folder)
    now, applied = gittree.head(root), gittree.applied(root)
    base = gittree.base_of(root)
    with gittree.reading(root) as repository:
        made = gittree.write_commits(repository, fork, base, before)
        _check_line(root, fork, repository, now, (applied, made))
        files = repository.entries(gittree.worktree(root, repository))
        if made == applied:
            # The fork is the one that was applied; commits on top of it, and edits, are the user's.
            return Move("unchanged", _ahead(root, fork, repository, applied, now, files))
        old, new = repository.entries(applied), repository.entries(made)
        known = {*old, *new, *repository.entries(now)} - {STAMP_PATH}
        if now == made and all(files.get(p) == new.get(p) for p in known):
            if not dry_run:
                _refs(root, repository, applied, made)
            return Move("unchanged")
        _check_files(root, now == applied, (old, new), known, files, applied)
        if dry_run:
            return Move("updated")
        gittree.write_commits(Repository(folder), fork, base, before)
        _files(root, repository, made, known, files)
        _set(root, "HEAD", made)
        _refs(root, repository, applied, made)
    return Move("updated")


def _refs(root: Path, repository: Repository, applied: str, made: str) -> None:
    """What apply made, and the branch of upstream, unless someone moved that one."""
    first, name = gittree.first_of(repository, made), f"refs/heads/{UPSTREAM}"
    found = gittree.run(root, "for-each-ref", "--format=%(objectname)", name).decode().strip()
    if found in ("", gittree.first_of(repository, applied)):
        _set(root, name, first)
    _set(root, APPLIED, made)


def _set(root: Path, name: str, commit: str) -> None:
    try:
        gittree.run(root, "update-ref", "-m", "kunlunfork apply", name, commit)
    except git.GitFailed as e:
        raise ForkError(
            f"{name} of {root} cannot be moved", found=e.found,
            fix=f"if no other git is at work there, remove the lock that git names; then go on: "
            f"{transaction.command(root, 'apply')}",
        ) from e  # fmt: skip


def _check_line(root: Path, fork: Fork, repository: Repository, now: str, own: tuple[str, str]) -> None:
    """Refuse a HEAD that has nothing of the fork's: upstream's commit, or another history."""
    roots = repository.git("rev-list", "--max-parents=0", now).decode().split()
    ours = any(commit.text.get(messages.BASE) is not None for commit in commits.read(repository, roots))
    if now in own or (ours and now not in roots):
        return
    branch = gittree.branch(fork.pin.version)
    heads = gittree.run(root, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}").decode().split()
    back = branch if heads and heads[0] != now else f"-C {branch} {APPLIED}"
    raise ForkError(
        f"HEAD of {root} is not on the fork's history",
        found=f"upstream's commit {now[:10]}" if ours else f"commit {now[:10]}, which starts elsewhere",
        expected=f"the branch {branch}, or another with the fork's commits",
        fix=f"git -C {shlex.quote(str(root))} switch {back}",
        exit_code=CONFLICT,
    )


def _ahead(
    root: Path, fork: Fork, repository: Repository, applied: str, now: str, files: Entries
) -> tuple[str, ...]:  # fmt: skip
    notes = []
    if now != applied:
        count = int(repository.git("rev-list", "--count", f"{applied}..{now}"))
        if applied in repository.git("rev-list", now).decode().split():
            notes.append(f"HEAD is {count} {'commit' if count == 1 else 'commits'} ahead")
        else:
            branch = gittree.branch(fork.pin.version)
            notes.append(f"HEAD has another history than apply made: rebased, or not the branch {branch}")
    have = repository.entries(now)
    edited = [p for p in sorted({*have, *files}) if p != STAMP_PATH and have.get(p) != files.get(p)]
    if edited:
        shown = ", ".join(paths.show(p) for p in edited[:5]) + (f" and {len(edited) - 5} more" if edited[5:] else "")
        notes.append(f"not committed: {shown}")
    return tuple(notes)


def _check_files(
    root: Path, at_applied: bool, trees: tuple[Entries, Entries], known: set[bytes], files: Entries, applied: str
) -> None:
    """Refuse to lose what is in neither of the two commits."""
    old, new = trees
    edits, strangers = [], []
    for path in sorted(known):
        allowed = (old.get(path), new.get(path)) if at_applied else (new.get(path),)
        have = files.get(path)
        # What git ignores is in no tree, and a half-done move may have taken a file away to write it anew.
        stranger = have is None and path in new and os.path.lexists(paths.on_disk(root, path))
        if stranger:
            strangers += [p for p in _below(root, path) if p not in known]
            if stat.S_ISDIR(paths.on_disk(root, path).lstat().st_mode):
                continue
            have = paths.present(root, path)
        if have in allowed or (have is None and at_applied and old.get(path) != new.get(path)):
            continue
        if path not in old:
            strangers.append(path)
        else:
            edits.append(f"{paths.show(path)}: {'edited' if have else 'deleted'}")
    strangers += sorted({p for path in new if path not in files for p in _in_the_way(root, path) if p not in known})
    edits += _staged(root, (old, new, files))
    if not at_applied and edits:
        log = gittree.run(root, "log", "--format=%h %s", f"{applied}..HEAD").decode(errors="replace")
        edits = [*(f"commit {line}" for line in log.splitlines()), *edits]
    if edits:
        what = "edits" if at_applied else "commits"
        raise ForkError(
            f"{root} has {what} that apply would lose",
            details=[*edits, *(f"{paths.show(p)}: in no commit, and the fork has another" for p in strangers)],
            expected="the commits that the last apply made, or files that are those of the fork already",
            fix=f"kunlunfork export{' --include-worktree' if at_applied else ''} {shlex.quote(str(root))}; "
            "then run the command again",
            exit_code=CONFLICT,
        )
    if strangers:
        raise ForkError(
            f"{root} has files of yours where the fork puts its own",
            details=[f"{paths.show(p)}: in no commit" for p in strangers],
            expected="nothing there, or the fork's bytes",
            fix=transaction.rescue(root, strangers, transaction.command(root, "apply")),
            exit_code=CONFLICT,
        )


def _below(root: Path, path: bytes) -> list[bytes]:
    """The files in a folder that lies where a file is to be; none where it is no folder."""
    top = os.fsencode(root)
    full = os.path.join(top, path)  # noqa: PTH118
    if os.path.islink(full):  # noqa: PTH114
        return []
    return [os.path.relpath(os.path.join(at, name), top) for at, _, names in os.walk(full) for name in names]  # noqa: PTH118


def _in_the_way(root: Path, path: bytes) -> list[bytes]:
    """What lies, as a file or link, where a folder for `path` is to be."""
    found = []
    for parent in paths.parents(path):
        full = paths.on_disk(root, parent)
        if full.is_symlink() or (os.path.lexists(full) and not full.is_dir()):
            found.append(parent)
    return found


def _staged(root: Path, known: tuple[Entries, ...]) -> list[str]:
    """What is in the index alone: staged, and neither in a commit nor in a file."""
    try:
        lines = gittree.run(root, "ls-files", "--stage", "-z").split(b"\0")[:-1]
    except git.GitFailed as e:
        raise ForkError(f"the index of {root} cannot be read", found=e.found, fix="git reset") from e
    found = []
    for line in lines:
        meta, _, path = line.partition(b"\t")
        mode, blob, stage = meta.decode().split()
        if path == STAMP_PATH or (stage == "0" and blob in {t[path].blob for t in known if path in t}):
            continue
        found.append(f"{paths.show(path)}: staged, and not in the file ({mode})")
    return found


def _files(root: Path, repository: Repository, made: str, known: set[bytes], files: Entries) -> None:
    """The work tree and the index become those of the commit `made`; what is not `known` stays as it is."""
    own = gittree.index_of(root)
    busy = own.with_name("index.lock")
    if os.path.lexists(busy):
        raise ForkError(
            f"another git is at work in {root}, or was killed there", found=str(busy),
            fix=f"wait for it; if there is none: rm {shlex.quote(str(busy))}",
        )  # fmt: skip
    env = gittree.worktree_index(repository)
    others = [p for p in files if p not in known]
    hidden = [p for p in known if p not in files and os.path.lexists(paths.on_disk(root, p))]
    for option, names in (("--force-remove", others), ("--add", hidden)):
        if names:
            gittree.run(
                root, "update-index", option, "-z", "--stdin", stdin=b"".join(n + b"\0" for n in names), env=env
            )
    start = gittree.run(root, "write-tree", env=env).decode().strip()
    try:
        # Two-way: it refuses to write over anything that is not as in `start`.
        gittree.run(root, "read-tree", "-m", "-u", start, made, env=env)
        gittree.run(root, "update-index", "-q", "--refresh", env=env)
    except git.GitFailed as e:
        raise ForkError(
            f"the files in {root} could not all be updated", found=e.found,
            expected="a tree that this user may write, and room on the disk",
            fix=f"mend that; then go on: {transaction.command(root, 'apply')}",
        ) from e  # fmt: skip
    # Beside the old one, then renamed over it.
    new = gittree.state(root) / "index.new"
    shutil.copy2(env["GIT_INDEX_FILE"], new)
    new.replace(own)
