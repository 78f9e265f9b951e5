"""What state a tree is in: read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths, recovery
from kunlunfork.apply import local_edits
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.fork import load as load_fork
from kunlunfork.journal import PRE
from kunlunfork.lock import Lock
from kunlunfork.paths import Entry
from kunlunfork.pins import public
from kunlunfork.record import verify_record
from kunlunfork.store import Store
from kunlunfork.target import Target

State = Literal["upstream", "applied", "edited", "interrupted", "leftover"]


@dataclass(frozen=True)
class Status:
    """What was found.

    `state`: upstream (no fork), applied, edited, interrupted (a killed command; `interrupted` says which and how far),
    leftover (a command killed before it changed anything). `current`: whether the tree carries the fork's present
    content; None where there is no such pin.
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


def _interrupted(target: Target, lock: Lock | None) -> Status | None:
    info, root = target.info, target.root
    journal = journals.read(target.state)
    if journal is not None:
        done, total = recovery.progress_of(root, journal)
        strangers = tuple(recovery.edited(root, journal))
        other = "revert takes the tree back to upstream" if journal.verb != "revert" else "apply puts the fork back"
        same = "apply" if journal.verb != "revert" else "revert"
        return Status(
            "interrupted", root, info.kind, info.version, lock, strangers,
            f"{journal.verb} was killed after {done} of {total} files", None,
            f"put the edited files back first, then kunlunfork {same}" if strangers
            else f"kunlunfork {same} finishes it; {other}",
        )  # fmt: skip
    if recovery.leftover(target.state, lock):
        return Status(
            "leftover", root, info.kind, info.version, lock, (), "a command was killed before it changed anything",
            None,
            "any apply or revert removes what is left over",
        )  # fmt: skip
    return None


def read(target: Target, content: Content | None) -> Status:
    """Classify a tree.

    Raises:
        ForkError: the lock or the journal cannot be read, or the lock is lost.
    """
    lock = locks.read(target.state)
    broken = _interrupted(target, lock)
    if broken is not None:
        return broken
    info = target.info
    if lock is None:
        known = info.version is not None and content is not None
        fix = f"kunlunfork apply --in-place {target.root}" if known else None
        return Status("upstream", target.root, info.kind, info.version, None, (), None, None, fix)
    edits = tuple(local_edits(target.root, lock))
    fork = _same_pin(content, lock)
    current = None if fork is None else (fork.series_hash, fork.overlay_hash) == (lock.series_hash, lock.overlay_hash)
    fix = None
    if edits:
        fix = "undo the edits, or keep them elsewhere, before the next apply or revert"
    elif current is False:
        fix = f"kunlunfork apply --in-place {target.root}"
    return Status(
        "edited" if edits else "applied",
        target.root,
        lock.base_kind,
        lock.base_version,
        lock,
        edits,
        None,
        current,
        fix,
    )


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
    problems += status.edits
    if lock is not None:
        for blob in sorted(lock.pre_blobs()):
            file = target.state / PRE / blob
            if not file.is_file() or paths.blob_id(file.read_bytes()) != blob:
                problems.append(f"{file.relative_to(target.root)}: the pre-image is lost")
        problems += _record_problems(target, lock)
    others, compared = compare(
        target.root,
        upstream or {},
        frozenset(lock.files if lock else ()),
        whole=target.info.layout == "plain",
    )
    return Verdict(status, tuple(problems), others, compared + len(lock.files if lock else ()))


def upstream_of(target: Target, store: Store) -> dict[bytes, Entry] | None:
    """The files of the release that a tree was made from, where the store has it."""
    lock = locks.read(target.state)
    version = lock.version if lock is not None else target.info.version
    if version is None:
        return None
    kind = "git" if target.info.kind == "checkout" else "sdist"
    base = store.find(kind, public(version))
    if base is None:
        return None
    files = store.entries(base.tree)
    if target.info.layout == "plain":
        return files
    return {
        p: e for p, e in files.items() if p.startswith(b"vllm/") and p.endswith(b".py") and p != b"vllm/_version.py"
    }


def _record_problems(target: Target, lock: Lock) -> list[str]:
    if target.info.dist_info is None:
        return []
    record = target.info.dist_info / "RECORD"
    changed = [p for p, h in lock.files.items() if h.role != "record" and h.post is not None]
    return [
        f"RECORD: {paths.show(p.path)}: found {p.found}, expected {p.expected}"
        for p in verify_record(target.root, record.read_bytes(), changed)
    ]


def compare(
    root: Path, upstream: Mapping[bytes, Entry], skip: frozenset[bytes], *, whole: bool
) -> tuple[tuple[str, ...], int]:
    """(files that differ from upstream's release, files compared); in a `whole` tree a missing file differs too."""
    differ, count = [], 0
    for path, entry in upstream.items():
        if path in skip:
            continue
        have = paths.read_entry(root, path)
        if have is None and not whole:
            continue
        count += 1
        if have is None or have[0].blob != entry.blob:
            differ.append(paths.show(path))
    return tuple(differ), count
