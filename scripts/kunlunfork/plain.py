"""The edits in a fork tree without git, made into a patch."""

from __future__ import annotations

from collections.abc import Mapping

from kunlunfork import export, exportfiles, gittree, paths, transaction, walk
from kunlunfork import fork as forks
from kunlunfork import lock as locks
from kunlunfork.apply import apply_in_place
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.export import Plan
from kunlunfork.fork import STAMP_PATH, Files
from kunlunfork.lock import Lock
from kunlunfork.messages import Text
from kunlunfork.objects import Repository, scratch
from kunlunfork.patchwrite import Effect
from kunlunfork.paths import Entry
from kunlunfork.progress import Progress
from kunlunfork.store import Base, Store
from kunlunfork.target import Target

# What Python and compilers leave in a tree.
_MADE = (b".pyc", b".pyo", b".so", b".o")


def version(target: Target) -> str:
    """The pin of a fork tree (raises `ForkError` where it carries no fork)."""
    lock = locks.read(target.state)
    if lock is None:
        raise ForkError(f"{target.root} carries no fork", fix=transaction.command(target.root, "apply"))
    return lock.version


def plan(content: Content, target: Target, store: Store, base: Base, new: Text) -> Plan:
    """What a patch that says `new` would be, made of all edits of upstream's files; edits of overlay files join it.

    Args:
        base: the release that the tree was made from.

    Raises:
        ForkError: no fork tree; the clone has another fork by now (exit 3).
    """
    lock = locks.read(target.state)
    assert lock is not None
    fork = forks.load(content, lock.version)
    if (fork.series_hash, fork.overlay_hash) != (lock.series_hash, lock.overlay_hash):
        raise ForkError(
            f"{target.root} was made from another state of {content.root}",
            found=f"series {lock.series_hash[:12]}, overlay {lock.overlay_hash[:12]}",
            expected=f"series {fork.series_hash[:12]}, overlay {fork.overlay_hash[:12]}",
            fix="go back to the commit of the clone that the tree was made from, and make the patch there",
            exit_code=CONFLICT,
        )  # fmt: skip
    with scratch(store.path / "objects", gittree.ATTRIBUTES) as repository:
        entries = repository.entries(base.tree)
        edited = _edits(target, lock, entries, repository)
        before: Files = dict.fromkeys(fork.touched)
        before.update(repository.read({p: e for p, e in entries.items() if p in fork.touched}))
        head = gittree.write_commits(repository, fork, base.tree, before)
        planned, _ = export.make_plan(content, target.root, repository, head, edited, new, own_layer=False)
    return planned


def _edits(target: Target, lock: Lock, entries: Mapping[bytes, Entry], repository: Repository) -> Effect:
    """What differs between the fork as it was applied and the files of the tree, new ones included."""
    fork = {path: held.post for path, held in lock.files.items() if held.role != "record"}
    whole = target.info.layout == "plain"
    found: Effect = {}
    datas: list[bytes] = []
    for path in sorted({*fork, *entries}):
        was = fork.get(path, entries.get(path))
        if path == STAMP_PATH or (not whole and path not in fork and not path.endswith(b".py")):
            continue
        have = paths.read_entry(target.root, path)
        if have is None and path not in fork and not whole:
            continue
        now = have[0] if have else None
        if now == was or (not whole and was and now and was.blob == now.blob):
            continue  # wheels and pip have permissions of their own
        found[path] = (was, now)
        if have is not None:
            datas.append(have[1])
    for name, entry, data in walk.files(target.root / "vllm", skip={"__pycache__"}):
        path = b"vllm/" + name
        if path in fork or path in entries or path.endswith(_MADE) or (not whole and not path.endswith(b".py")):
            continue
        found[path] = (None, entry)
        datas.append(data)
    repository.put(datas)
    return found


def carry_out(content: Content, target: Target, store: Store, planned: Plan, progress: Progress) -> None:
    """Write the patch into the clone, and let the tree's record know that it carries it (raises `ForkError`)."""
    exportfiles.write(content.root, planned.writes)
    apply_in_place(content, target, store, wanted=planned.version, dry_run=False, progress=progress)
