"""Putting the fork onto a tree that is already there, and taking it off again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from kunlunfork import ahead as aheads
from kunlunfork import edits, originals, paths, recovery, transaction
from kunlunfork import fork as forks
from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork.content import Content
from kunlunfork.edits import Entries
from kunlunfork.errors import ForkError
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.journal import PRE, Change, Journal
from kunlunfork.lock import Held, Lock
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.pins import Pin, public
from kunlunfork.progress import Progress
from kunlunfork.record import rewrite_record
from kunlunfork.sources.tree import TreeInfo, git_state
from kunlunfork.stages import Files
from kunlunfork.store import Store
from kunlunfork.target import Target


@dataclass(frozen=True)
class Outcome:
    """What a command did: `action` is applied, updated, unchanged or reverted; with `dry_run` what it would do.

    `notes`: what is not as apply left it and stays so.
    """

    action: str
    root: Path
    version: str
    patches: tuple[str, ...]
    written: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    series_hash: str
    overlay_hash: str
    recovered: str | None = None
    dry_run: bool = False
    notes: tuple[str, ...] = ()


def _check_release(content: Content, info: TreeInfo, pin: Pin, wanted: str | None) -> None:
    """Refuse a tree of another release than the pin's (raises `ForkError` naming both)."""
    if info.version is not None and Version(public(info.version)) != Version(Version(pin.version).public):
        pinned = any(Version(v) == Version(public(info.version)) for v in content.versions())
        raise ForkError(
            f"{info.root} is another version of vLLM",
            found=info.version,
            expected=pin.version if wanted is None else f"{pin.version} (--vllm {wanted})",
            fix=transaction.command(info.root, "apply") if pinned else f"kunlunfork apply --vllm {pin.version}",
        )
    known = info.commit
    if known is not None and not (pin.commit.startswith(known) or known.startswith(pin.commit)):
        raise ForkError(
            f"{info.root} was made from another commit of vLLM than {pin.tag}",
            found=f"commit {known}",
            expected=f"commit {pin.commit[: max(9, len(known))]}",
            fix=f"check out {pin.tag}, or take a fresh tree: kunlunfork apply --vllm {pin.version}",
        )


def pin_of(content: Content, info: TreeInfo, wanted: str | None) -> Pin:
    """The pin for a tree: the one asked for, else the one of the version that the tree has."""
    if wanted is None and info.version is None:
        raise ForkError(
            f"{info.root} does not say which version of vLLM it is",
            expected="vllm/_version.py or a dist-info",
            fix="name the release, with --vllm VERSION; those that there are: kunlunfork pins",
        )
    pin = content.pin(wanted or info.version or "")
    _check_release(content, info, pin, wanted)
    return pin


def _read_base(
    target: Target, lock: Lock | None, wanted: frozenset[bytes], store: Store
) -> tuple[Files, dict[bytes, int | None]]:
    """What upstream had at every path of interest, and the permission bits it had there."""
    base: Files = {}
    perms: dict[bytes, int | None] = {}
    pre = originals.read(target, lock, store) if lock is not None else {}
    for path in sorted(wanted | frozenset(lock.files if lock else ())):
        held = lock.files.get(path) if lock else None
        if held is not None:
            base[path] = (held.pre, pre[held.pre.blob]) if held.pre else None
            perms[path] = held.perm
        else:
            transaction.check_parents(target.root, path)
            base[path] = paths.read_entry(target.root, path)
            perms[path] = _perm(target.root, path) if base[path] is not None else None
    return base, perms


def _perm(root: Path, path: bytes) -> int:
    return paths.on_disk(root, path).lstat().st_mode & 0o7777


def _check_layout(fork: Fork, info: TreeInfo) -> None:
    outside = sorted(p for p in fork.touched if not p.startswith(b"vllm/"))
    if info.layout == "installed" and outside:
        raise ForkError(
            f"this fork of vLLM {fork.pin.version} changes files that an installed vLLM does not have",
            details=[paths.show(p) for p in outside],
            fix="apply it to a source tree and install that",
        )


def role_of(fork: Fork, path: bytes) -> str:
    if path == STAMP_PATH:
        return "stamp"
    return "overlay" if path in fork.overlay.files else "patch"


def make_lock(
    fork: Fork,
    info: TreeInfo,
    base: Files,
    post: Files,
    perms: Mapping[bytes, int | None],
    folders: tuple[bytes, ...],
) -> Lock:
    files = {}
    for path in sorted(fork.touched):
        before, after = base.get(path), post.get(path)
        if before is None and after is None:
            continue
        files[path] = Held(
            role_of(fork, path), before[0] if before else None, after[0] if after else None, perms.get(path)
        )
    return Lock(
        version=fork.pin.version,
        commit=fork.pin.commit,
        base_kind=info.kind,
        base_version=info.version or fork.pin.version,
        series_hash=fork.series_hash,
        overlay_hash=fork.overlay_hash,
        patches=tuple((p.name, p.sha256) for p in fork.patches),
        files=files,
        folders=folders,
    )


def _with_record(lock: Lock, target: Target, base: Files, post: Files) -> tuple[Lock, bytes]:
    """The lock of an installed tree: RECORD is one more file that changes."""
    assert target.info.dist_info is not None
    name = paths.from_disk(target.info.dist_info.relative_to(target.root))
    record, state = name + b"/RECORD", paths.from_disk(target.state.relative_to(target.root))
    pre = base[record]
    assert pre is not None
    written: dict[bytes, bytes | None] = {}
    removed = set()
    pool = {value[0].blob: value[1] for value in base.values() if value is not None}
    for path, held in lock.files.items():
        value = post.get(path)
        if value is not None:
            written[path] = value[1]
        elif held.pre is not None:
            removed.add(path)
    # The lock names RECORD's own blob, so a hash of the lock in RECORD could never be true.
    written[state + b"/" + locks.NAME.encode()] = None
    for blob in lock.pre_blobs() | {pre[0].blob}:
        written[b"%s/%s/%s" % (state, PRE.encode(), blob.encode())] = pool[blob]
    data = rewrite_record(pre[1], written=written, removed=removed)
    held = Held("record", pre[0], Entry(pre[0].mode, paths.blob_id(data)), _perm(target.root, record))
    return replace(lock, files={**lock.files, record: held}), data


def _changes(target: Target, lock: Lock | None, old: Lock | None, have: Entries) -> tuple[Change, ...]:
    """What has to be done to come from what lies there (`have`, at the paths of `old`) to the lock (or upstream)."""
    changes = []
    for path in sorted(set(lock.files if lock else ()) | set(old.files if old else ())):
        new, was = (x.files.get(path) if x else None for x in (lock, old))
        pre = new or was
        assert pre is not None
        before = have.get(path, pre.pre)
        after = new.post if new else pre.pre
        if before == after:
            continue
        after_perm = None
        if after is not None and after.mode != SYMLINK:
            after_perm = journals.fresh_perm(after.mode)
            if pre.perm is not None and pre.pre is not None:
                after_perm = pre.perm if after.mode == pre.pre.mode else journals.with_mode(pre.perm, after.mode)
        before_perm = _perm(target.root, path) if before is not None else None
        changes.append(Change(path, before, after, before_perm, after_perm))
    return tuple(changes)


def apply_in_place(
    content: Content, target: Target, store: Store, *, wanted: str | None, link: bool | None = None, dry_run: bool,
    progress: Progress,
) -> Outcome:  # fmt: skip
    """Put the fork onto a tree, or bring a fork tree of the same pin up to date.

    Args:
        link: overlay files become symbolic links into the clone, so that edits are live; None leaves it as it is.

    Raises:
        ForkError: another version, someone else's changes (exit 3), local edits (exit 3), a path that may not be
            written; the tree is then as it was before.
    """
    with transaction.exclusive(target.root):
        recovered = _recover(target, "apply", dry_run, progress)
        outcome = apply_held(content, target, store, wanted=wanted, link=link, dry_run=dry_run, progress=progress)
        return replace(outcome, recovered=recovered)


def is_linked(fork: Fork, old: Lock | None) -> bool:
    """Whether a tree's overlay files are links into a clone."""
    held = {} if old is None else old.files
    plain = (path for path, file in fork.overlay.files.items() if file.entry.mode != SYMLINK)
    posts = (held[path].post for path in plain if path in held)
    return any(post is not None and post.mode == SYMLINK for post in posts)


def apply_held(
    content: Content, target: Target, store: Store, *, wanted: str | None, link: bool | None = None,
    known: Files | None = None, dry_run: bool, progress: Progress,
) -> Outcome:  # fmt: skip
    """`apply_in_place` on a tree that the caller holds and that has no change under way.

    Args:
        known: upstream's files, at paths of a fork tree that are already as the newer fork makes them.
    """
    pin = pin_of(content, target.info, wanted)
    old = locks.read(target.state)
    if old is not None and old.version != pin.version:
        raise ForkError(
            f"{target.root} carries the fork of another version",
            found=old.version,
            expected=pin.version,
            fix=transaction.command(target.root, "revert"),
        )
    fork = forks.load(content, pin.version)
    if is_linked(fork, old) if link is None else link:
        fork = forks.linked(fork, content)
        if target.info.layout == "installed":
            raise ForkError(
                f"{target.root} is an installed vLLM, whose files are its own", expected="--link with a source tree",
                fix="leave --link away",
            )  # fmt: skip
    _check_layout(fork, target.info)
    # Looked at once: what is refused, and what is changed, is the same.
    have: Entries = {} if old is None else edits.present(target.root, old)
    extra: frozenset[bytes] = frozenset()
    if target.info.dist_info is not None:
        extra = frozenset([paths.from_disk(target.info.dist_info.relative_to(target.root)) + b"/RECORD"])
    base, perms = _read_base(target, old, fork.touched | extra, store)
    ahead = aheads.find(fork, old, base, store, known or {})
    forks.check_base(fork, base | ahead.base, where=str(target.root))
    post = forks.build(fork, base | ahead.base)
    after = {path: value[0] if value else None for path, value in post.items()}
    if old is not None:
        edits.refuse(target, old, have, "apply", after)
        ahead = aheads.settle(ahead, fork, after, base, known or {}, target.root)
        base |= ahead.base
        perms |= ahead.perms(perms)
        have = {**have, **ahead.now}
    plan = make_lock(fork, target.info, base, post, perms, ())
    data = transaction.collect_data(base, post)
    if target.info.dist_info is not None:
        plan, record = _with_record(plan, target, base, post)
        data[paths.blob_id(record)] = record
    changes = _changes(target, plan, old, have)
    made = transaction.new_folders(target.root, changes)
    own = aheads.own_folders(target.root, ahead, plan)
    still = {b"/".join(p.split(b"/")[:i]) for p, h in plan.files.items() if h.post for i in range(1, p.count(b"/") + 1)}
    kept = tuple(f for f in (old.folders if old else ()) if f in still)
    plan = replace(plan, folders=tuple(sorted({*kept, *made, *own})))
    whole = old == plan and not changes and not originals.broken(target.state, plan)
    action = "unchanged" if whole else "updated" if old else "applied"
    if action != "unchanged" and not dry_run:
        data |= _old_bytes(target, changes) if old else {}
        verb: journals.Verb = "update" if old else "apply"
        transaction.execute(target.root, target.state, Journal(verb, changes, made, plan, old, data), progress)
    return _outcome(action, target.root, plan, changes, dry_run)


def _recover(target: Target, command: str, dry_run: bool, progress: Progress) -> str | None:
    """Deal with a killed command. Revert undoes a killed apply, apply undoes a killed revert; each finishes its own."""
    journal = journals.read(target.state)
    if journal is not None and dry_run:
        raise ForkError(
            f"a killed {journal.verb} left {target.root} half changed; a dry run cannot see past that",
            fix=transaction.command(target.root, command),
        )
    if dry_run:
        return None
    recovered = recovery.recover(target.root, target.state, command=command, progress=progress)
    if recovered is not None:
        progress.note(recovered)
    return recovered


def _old_bytes(target: Target, changes: tuple[Change, ...]) -> dict[str, bytes]:
    """The bytes that lie at the changed paths now, so that the change can be undone."""
    found = {}
    for change in changes:
        have = paths.read_entry(target.root, change.path) if change.before is not None else None
        if have is not None:
            if have[0] != change.before:
                raise transaction.EditedMeanwhile(target.root, change.path)
            found[have[0].blob] = have[1]
    return found


def _outcome(action: str, root: Path, lock: Lock, changes: tuple[Change, ...], dry_run: bool) -> Outcome:
    return Outcome(
        action, root, lock.version, tuple(name for name, _ in lock.patches),
        tuple(c.path for c in changes if c.after is not None), tuple(c.path for c in changes if c.after is None),
        lock.series_hash, lock.overlay_hash, None, dry_run,
    )  # fmt: skip


def revert(target: Target, *, dry_run: bool, progress: Progress, store: Store | None = None) -> Outcome:
    """Take the fork off a tree: bytes, modes and absence as before; a lost pre-image comes from the store, if there.

    Raises:
        ForkError: no fork tree, or files were edited since (exit 3).
    """
    if target.state == git_state(target.root):
        raise ForkError(
            f"{target.root} is a git tree: the fork is in its history",
            fix=f"git -C {shlex.quote(str(target.root))} switch --detach upstream",
        )
    with transaction.exclusive(target.root):
        recovered = _recover(target, "revert", dry_run, progress)
        lock = locks.read(target.state)
        if lock is None:
            if recovered is not None:
                return Outcome("reverted", target.root, target.info.version or "", (), (), (), "", "", recovered)
            raise ForkError(
                f"{target.root} carries no fork",
                found="no lock",
                expected="a tree that kunlunfork apply made",
                fix=f"kunlunfork status {shlex.quote(str(target.root))}",
            )
        have = edits.present(target.root, lock)
        edits.refuse(target, lock, have, "revert")
        pre = originals.read(target, lock, store)
        changes = _changes(target, None, lock, have)
        if not dry_run:
            data = {**pre, **_old_bytes(target, changes)}
            journal = Journal("revert", changes, (), None, lock, data)
            transaction.execute(target.root, target.state, journal, progress)
        return replace(_outcome("reverted", target.root, lock, changes, dry_run), recovered=recovered)
