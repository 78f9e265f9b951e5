"""What state a tree is in: read only."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kunlunfork import gitupdate, originals, paths, recovery, transaction
from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork.apply import pin_of
from kunlunfork.content import Content
from kunlunfork.edits import endangered, local_edits, present, strangers, way_out
from kunlunfork.errors import ForkError
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.fork import load as load_fork
from kunlunfork.journal import PRE
from kunlunfork.lock import Lock
from kunlunfork.paths import Entry
from kunlunfork.pins import public
from kunlunfork.record import read_record, verify_record
from kunlunfork.sources.tree import TreeInfo, git_state
from kunlunfork.store import Store
from kunlunfork.target import Target

State = Literal["upstream", "applied", "edited", "interrupted", "leftover"]


@dataclass(frozen=True)
class Status:
    """What was found.

    `state`: upstream (no fork), applied, edited, interrupted (a killed command; `interrupted` says which and how far),
    leftover (a command killed before it changed anything). `current`: whether the tree carries the fork's present
    content; None where there is no such pin. `exported`: edits of a git tree that its clone has, until the next apply.
    """

    state: State
    root: Path
    kind: str
    version: str | None
    lock: Lock | None
    edits: tuple[str, ...]
    interrupted: str | None
    current: bool | None
    fix: str | None
    exported: tuple[str, ...] = ()


def _interrupted(target: Target, lock: Lock | None) -> Status | None:
    info, root = target.info, target.root
    journal = journals.read(target.state)
    if journal is None:
        return None
    done, total = recovery.progress_of(root, journal)
    strangers = transaction.edited(root, journal)
    same, other = ("revert", "apply") if journal.verb == "revert" else ("apply", "revert")
    ends = "takes the tree back to upstream" if other == "revert" else "puts the fork back"
    again = transaction.command(root, same)
    return Status(
        "interrupted", root, info.kind, info.version, lock, tuple(paths.show(p) for p in strangers),
        f"{journal.verb} was killed after {done} of {total} files; {transaction.command(root, other)} {ends} instead",
        None, transaction.rescue(root, strangers, again) if strangers else again,
    )  # fmt: skip


def read(target: Target, content: Content | None) -> Status:
    """Classify a tree.

    Raises:
        ForkError: the lock or the journal cannot be read, or is lost.
    """
    lock = locks.read(target.state)
    broken = _interrupted(target, lock)
    if broken is not None:
        return broken
    info, root = target.info, target.root
    edits = tuple(local_edits(root, lock)) if lock is not None else ()
    left = recovery.leftover(root, target.state, lock)
    if left and not edits:
        return Status(
            "leftover", root, info.kind, info.version, lock, (), "a command was killed before it changed anything, or"
            " after it was done", None,
            transaction.command(root, "apply" if lock else "revert"),
        )  # fmt: skip
    if lock is None:
        return Status("upstream", root, info.kind, info.version, None, (), None, None, _would_apply(content, info))
    fork = _same_pin(content, lock)
    current = None if fork is None else (fork.series_hash, fork.overlay_hash) == (lock.series_hash, lock.overlay_hash)
    if fork is not None and current:
        edits += tuple(strangers(root, lock, fork.overlay.files))
    fix = None
    exported: tuple[str, ...] = ()
    if edits and target.state == git_state(root):
        stamp = f"{paths.show(STAMP_PATH)}: "
        if all(edit.startswith(stamp) for edit in edits):
            # It is in no commit: git clean takes it away, and apply puts it back.
            fix = transaction.command(root, "apply")
        elif fork is not None and not current and gitupdate.has_all(root, fork, lock):
            edits, exported = (), edits
            fix = transaction.command(root, "apply")
        else:
            fix = f"kunlunfork export {shlex.quote(str(root))}"
    elif edits:
        fix = way_out(target, lock, endangered(root, lock, present(root, lock)), "apply")
    elif current is False:
        fix = transaction.command(root, "apply")
    return Status(
        "edited" if edits else "applied",
        root,
        lock.base_kind,
        lock.base_version,
        lock,
        edits,
        None,
        current,
        fix,
        exported,
    )


def _would_apply(content: Content | None, info: TreeInfo) -> str | None:
    """The command that puts the fork onto an upstream tree, unless it is of a release that has no pin."""
    if content is None:
        return None
    try:
        pin_of(content, info, None)
    except ForkError:
        return None
    return transaction.command(info.root, "apply")


def _same_pin(content: Content | None, lock: Lock) -> Fork | None:
    if content is None or lock.version not in content.versions():
        return None
    return load_fork(content, lock.version)


@dataclass(frozen=True)
class Verdict:
    """`problems` make verify fail; `others` are files of upstream that the fork did not touch and that differ."""

    status: Status
    problems: tuple[str, ...]
    others: tuple[str, ...]
    compared: int

    @property
    def fix(self) -> str:
        """The command that mends the problems: apply fetches lost pre-images too."""
        return self.status.fix or transaction.command(self.status.root, "apply")


def verify(target: Target, content: Content | None, upstream: Mapping[bytes, Entry] | None) -> Verdict:
    """Read every file that the fork changed, its pre-images and RECORD; and, where `upstream` is known, all the others.

    Raises:
        ForkError: the tree carries no fork, or its lock cannot be read.
    """
    status = read(target, content)
    lock = status.lock
    if lock is None and status.state == "upstream":
        raise ForkError(
            f"{target.root} carries no fork", found="no lock", expected="a tree that kunlunfork apply made",
            fix=status.fix,
        )  # fmt: skip
    problems = [status.interrupted] if status.interrupted else []
    problems += [*status.edits, *status.exported]
    if lock is not None:
        for blob, what in originals.broken(target.state, lock).items():
            file = (target.state / PRE / blob).relative_to(target.root)
            problems.append(f"{file}: the pre-image is lost ({what})")
        problems += _record_problems(target, lock)
    whole = target.info.layout == "plain"
    others, compared = compare(target.root, upstream or {}, frozenset(lock.files if lock else ()), whole=whole)
    if upstream is not None and lock is not None:
        others += added(target.root, {*upstream, *lock.files} if whole else _recorded(target))
    return Verdict(status, tuple(problems), others, compared + len(lock.files if lock else ()))


def upstream_of(target: Target, store: Store, content: Content) -> dict[bytes, Entry] | None:
    """The files of the release that a tree was made from, as its pin has it, where the store has that."""
    lock = locks.read(target.state)
    version = lock.version if lock is not None else target.info.version
    if version is None or public(version) not in content.versions():
        return None
    base = store.release(content.pin(public(version)), "git" if target.info.kind == "checkout" else "sdist")
    if base is None:
        return None
    files = store.entries(base.tree)
    if target.info.layout == "plain":
        return files
    return {
        p: e for p, e in files.items() if p.startswith(b"vllm/") and p.endswith(b".py") and p != b"vllm/_version.py"
    }


def _recorded(target: Target) -> set[bytes]:
    assert target.info.dist_info is not None
    return set(read_record(_record(target.info.dist_info)))


def _record(dist_info: Path) -> bytes:
    try:
        return paths.read_plain(dist_info / "RECORD")
    except OSError as e:
        raise ForkError(f"{dist_info / 'RECORD'} cannot be read", found=e.strerror or str(e)) from e


def _record_problems(target: Target, lock: Lock) -> list[str]:
    if target.info.dist_info is None:
        return []
    changed = [p for p, h in lock.files.items() if h.role != "record" and h.post is not None]
    return [
        f"RECORD: {paths.show(p.path)}: found {p.found}, expected {p.expected}"
        for p in verify_record(target.root, _record(target.info.dist_info), changed)
    ]


def compare(
    root: Path, upstream: Mapping[bytes, Entry], skip: frozenset[bytes], *, whole: bool
) -> tuple[tuple[str, ...], int]:
    """(files that differ from upstream's release, files compared).

    In a `whole` tree a missing file, another mode, and a link in place of a folder differ too.
    """
    links = paths.linked_folders(root, upstream) if whole else []
    differ, count = [f"{paths.show(folder)} (a link)" for folder in links], 0
    for path, entry in upstream.items():
        if path in skip:
            continue
        have = paths.present(root, path)
        if have is None and not whole:
            continue
        count += 1
        if have is None or have.blob != entry.blob:
            differ.append(paths.show(path))
        elif whole and have.mode != entry.mode:
            differ.append(f"{paths.show(path)} (mode)")
    return tuple(differ), count


def added(root: Path, known: Collection[bytes]) -> tuple[str, ...]:
    """Files in `vllm/` that nobody knows; Python's bytecode is not looked at."""
    return tuple(f"{paths.show(path)} (added)" for path in paths.walk(root, "vllm") if path not in known)
