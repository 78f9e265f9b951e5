"""`apply` onto a git tree that is there: the commits of the fork as it is now take the place of those it made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kunlunfork import exportfiles, gitmove, gittree, journal, paths, transaction
from kunlunfork import fork as forks
from kunlunfork import lock as locks
from kunlunfork.apply import Outcome, make_lock, pin_of
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import STAMP_PATH
from kunlunfork.journal import PRE
from kunlunfork.objects import Repository
from kunlunfork.stages import Files
from kunlunfork.target import Target


def update(content: Content, target: Target, *, wanted: str | None, dry_run: bool) -> Outcome:
    """Bring a git tree up to date.

    Raises:
        ForkError: another version; (exit 3) commits or edits that are not exported would be lost.
    """
    root = target.root
    with transaction.exclusive(root):
        pin = pin_of(content, target.info, wanted)
        old = locks.read(target.state)
        if old is None or old.version != pin.version:
            raise ForkError(
                f"{root} carries the fork of another version", found=old.version if old else "no lock",
                expected=pin.version, fix="make another tree: name another folder",
            )  # fmt: skip
        fork = forks.load(content, pin.version)
        before = originals(root, fork)
        forks.check_base(fork, before, where=str(root))
        post = forks.build(fork, before)
        perms = {p: journal.fresh_perm(e[0].mode) for p, e in before.items() if e is not None}
        lock = make_lock(fork, target.info, before, post, perms, old.folders)
        lock = replace(lock, base_kind=old.base_kind, base_version=old.base_version)
        moved = gitmove.move(root, fork, before, dry_run=dry_run)
        # The stamp is in no commit: git clean takes it away.
        stamp = paths.present(root, STAMP_PATH)
        action = "updated" if lock != old or stamp != lock.files[STAMP_PATH].post else moved.action
        if action != "unchanged" and not dry_run:
            clone = content.root if content.clone else exportfiles.clone(target.state)
            exportfiles.save(target.state, exportfiles.made_from(fork), clone)
            _record(target, fork, before, post, lock)
        changed = [p for p in {**lock.files, **old.files} if lock.files.get(p) != old.files.get(p)]
        return Outcome(
            action, root, pin.version, tuple(p.name for p in fork.patches),
            tuple(p for p in sorted(changed) if p in lock.files and lock.files[p].post),
            tuple(p for p in sorted(changed) if p not in lock.files or not lock.files[p].post),
            fork.series_hash, fork.overlay_hash, None, dry_run, moved.notes,
        )  # fmt: skip


def originals(root: Path, fork: forks.Fork) -> Files:
    """What upstream has at each path that a fork touches, as the commits of a git tree know it (raises `ForkError`)."""
    repository = Repository(gittree.git_dir(root))
    entries = repository.entries(gittree.base_of(root))
    before: Files = dict.fromkeys(fork.touched)
    before.update(repository.read({p: e for p, e in entries.items() if p in fork.touched}))
    return before


def has_all(root: Path, fork: forks.Fork, lock: locks.Lock) -> bool:
    """Whether the files of a git tree are those of a fork, other than the one of its lock: after an export they are."""
    try:
        post = forks.build(fork, originals(root, fork))
    except ForkError:
        return False
    expected = {path: held.pre for path, held in lock.files.items()}
    expected.update({path: None if value is None else value[0] for path, value in post.items()})
    expected.pop(STAMP_PATH, None)
    return all(paths.present(root, path) == entry for path, entry in expected.items())


def _record(target: Target, fork: forks.Fork, before: Files, post: Files, lock: locks.Lock) -> None:
    """The stamp, which is in no commit, and the state; the lock goes last, so that a killed update is done again."""
    stamp = post[STAMP_PATH]
    assert stamp is not None
    journal.replace_file(paths.on_disk(target.root, STAMP_PATH), stamp[1], sync=False)
    for blob, data in transaction.collect_data(before).items():
        if blob in lock.pre_blobs() and not (target.state / PRE / blob).is_file():
            journal.write_file(target.state / PRE / blob, data, paths.REGULAR, journal.fresh_perm(paths.REGULAR))
    journal.replace_file(target.state / locks.NAME, locks.dump(lock))
