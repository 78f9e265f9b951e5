"""The edits in a fork tree without git, made into a patch."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kunlunfork import apply as applying
from kunlunfork import export, exportfiles, gittree, overlay, paths, transaction
from kunlunfork import fork as forks
from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.export import Plan
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.lock import Lock
from kunlunfork.messages import Text
from kunlunfork.objects import Repository, scratch
from kunlunfork.patchwrite import Effect
from kunlunfork.paths import EXECUTABLE, SYMLINK, Entry
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress, Silent
from kunlunfork.sources.base import Settings, release
from kunlunfork.stages import Files
from kunlunfork.store import Base, Store
from kunlunfork.target import Target

# What Python and compilers leave in a tree.
_MADE = (b".pyc", b".pyo", b".so", b".o")

# In the overlay's folder, git would follow these.
_ACTING = {b".gitignore", b".gitattributes", b".gitmodules", b".mailmap"}


@dataclass(frozen=True)
class Taking:
    """What a patch would be, and `before`: upstream's files at the paths that nothing of the fork was at till now."""

    plan: Plan
    before: Files


def version(target: Target) -> str:
    """The pin of a fork tree.

    Raises:
        ForkError: it carries no fork, is half changed, or is no source tree: an installed vLLM, or a wheel, lacks
            files of the release and has others, and those are nobody's edits.
    """
    if journals.read(target.state) is not None:
        raise ForkError(
            f"{target.root} is half changed: a command was killed", fix=transaction.command(target.root, "apply")
        )
    lock = locks.read(target.state)
    if lock is None:
        raise ForkError(f"{target.root} carries no fork", fix=transaction.command(target.root, "apply"))
    if target.info.layout != "plain":
        raise _no_source(
            target, lock, "an installed vLLM" if target.info.kind == "site-packages" else "a wheel's files"
        )
    return lock.version


def _no_source(target: Target, lock: Lock, found: str) -> ForkError:
    return ForkError(
        f"{target.root} is not a source tree that was made from the release", found=found,
        expected="a tree whose files are those of the release, but for your edits",
        fix=f"make one, and edit there: kunlunfork apply --vllm {lock.version} {_beside(target, 'source')}",
    )  # fmt: skip


def _beside(target: Target, what: str) -> str:
    root = target.root
    folder = Path.cwd() / f"vllm-{target.info.version}" if target.info.layout == "installed" else root
    found, count = folder.with_name(f"{folder.name}-{what}"), 1
    while os.path.lexists(found):
        count += 1
        found = folder.with_name(f"{folder.name}-{what}{count}")
    return shlex.quote(str(found))


def base_of(target: Target, pin: Pin, store: Store, settings: Settings) -> Base:
    """The release that a tree was made from: its sdist, or the files of its tag.

    Raises:
        ForkError: it cannot be had.
    """
    if os.path.lexists(target.root / "PKG-INFO"):
        return release(pin, store, settings)
    found = store.release(pin, "git")
    if found is None:
        lock = locks.read(target.state)
        assert lock is not None
        raise _no_source(target, lock, f"no PKG-INFO, so not the sdist; and {pin.tag} itself is not in the cache")
    return found


def plan(content: Content, target: Target, store: Store, base: Base, new: Text, add: Sequence[str] = ()) -> Taking:
    """What a patch that says `new` would be, made of all edits of upstream's files; edits of overlay files join it.

    Args:
        base: the release that the tree was made from.
        add: new files, relative to the tree, that go into the overlay. Others are left, and said.

    Raises:
        ForkError: no fork tree that can be taken from; a file that the fork cannot hold; the clone has another fork by
            now, or the tree's overlay is linked (exit 3).
    """
    version(target)
    lock = locks.read(target.state)
    assert lock is not None
    fork = forks.load(content, lock.version)
    is_linked = applying.is_linked(fork, lock)
    if fork.series_hash != lock.series_hash or not (is_linked or _has_overlay(target, fork, lock)):
        raise _another_state(content, target, store, fork, lock)
    with scratch(store.path / "objects", gittree.ATTRIBUTES) as repository:
        entries = repository.entries(base.tree)
        added = [_added(target.root, name, lock, entries) for name in add]
        edited = _edits(target, lock, entries, added, repository)
        if is_linked:
            if edited:
                raise _linked(target, lock, edited, new)
            notes = ("the overlay's files are links: edits of them are in the clone already",)
            return Taking(
                Plan(lock.version, target.root, (), fork.patches, notes, _left(target, fork, entries, added)), {}
            )
        _check_files(target, fork, edited, entries, repository)
        before: Files = dict.fromkeys(fork.touched)
        before.update(repository.read({p: e for p, e in entries.items() if p in fork.touched}))
        head = gittree.write_commits(repository, fork, base.tree, before)
        planned, _ = export.make_plan(content, target.root, repository, head, edited, new, own_layer=False)
        known: Files = dict.fromkeys(edited.keys() - lock.files.keys())
        known.update(repository.read({path: entries[path] for path in known if path in entries}))
    warnings = (w.replace("at the end of the commit's message", "in its header") for w in planned.warnings)
    return Taking(replace(planned, warnings=(*_left(target, fork, entries, added), *warnings)), known)


def _has_overlay(target: Target, fork: Fork, lock: Lock) -> bool:
    """Whether the clone has the overlay that was applied, but for edits of the tree that a killed `new-patch` wrote."""
    was = {path: held.post for path, held in lock.files.items() if held.role == "overlay"}
    now = {path: file.entry for path, file in fork.overlay.files.items()}
    return fork.overlay_hash == lock.overlay_hash or all(
        paths.present(target.root, path) == now.get(path) for path in {*was, *now} if was.get(path) != now.get(path)
    )


def _another_state(content: Content, target: Target, store: Store, fork: Fork, lock: Lock) -> ForkError:
    try:
        applying.apply_in_place(content, target, store, wanted=lock.version, dry_run=True, progress=Silent())
        fix = transaction.command(target.root, "apply")  # keeps the edits; or ends what a killed new-patch began
    except ForkError:
        fix = "go back to the commit of the clone that the tree was made from, and make the patch there"
    return ForkError(
        f"{target.root} was made from another state of {content.root}",
        found=f"series {lock.series_hash[:12]}, overlay {lock.overlay_hash[:12]}",
        expected=f"series {fork.series_hash[:12]}, overlay {fork.overlay_hash[:12]}",
        fix=fix,
        exit_code=CONFLICT,
    )


def _linked(target: Target, lock: Lock, edited: Effect, new: Text) -> ForkError:
    """A linked tree's files are the clone's: what is edited besides goes by way of a tree that has files of its own."""
    fresh = _beside(target, "plain")
    steps = [f"kunlunfork apply --vllm {lock.version} {fresh}"]
    options = ""
    for path, (was, now) in sorted(edited.items()):
        name = shlex.quote(os.fsdecode(path))
        if now is None:
            steps.append(f"rm {fresh}/{name}")
            continue
        if was is None and path not in lock.files:
            steps.append(f"mkdir -p {fresh}/{shlex.quote(os.path.dirname(os.fsdecode(path)))}")  # noqa: PTH120
            options += f" --add {name}"
        steps.append(f"cp -pP {shlex.quote(str(target.root))}/{name} {fresh}/{name}")
    steps.append(f"kunlunfork new-patch --title {shlex.quote(new.subject)}{options} {fresh}")
    return ForkError(
        f"the overlay's files in {target.root} are links, and a patch is made from a tree that has files of its own",
        details=[paths.show(path) for path in sorted(edited)],
        found=f"{len(edited)} files that are edited, replaced or new", expected="a tree made without --link",
        fix="; ".join(steps), exit_code=CONFLICT,
    )  # fmt: skip


def _added(root: Path, name: str, lock: Lock, entries: Mapping[bytes, Entry]) -> bytes:
    """The path of a new file that the user names."""
    given = PurePosixPath(name)
    if given.is_absolute() and given.is_relative_to(root):
        given = given.relative_to(root)
    path = paths.check(os.fsencode(str(given)), where="--add")
    transaction.check_parents(root, path)
    parts = {part.lower() for part in path.split(b"/")}
    if path == overlay.REMOVED.encode() or parts & _ACTING or parts & {name.lower().encode() for name in overlay.NOISE}:
        raise ForkError(
            f"{paths.show(path)} cannot be a file of the overlay", found="a name that means something in the clone",
            expected="a file that only means something in vLLM", fix="leave it out",
        )  # fmt: skip
    full = paths.on_disk(root, path)
    if path in lock.files or path in entries:
        raise ForkError(f"{full} is not new", expected="a file that neither vLLM nor the fork has", fix="leave it out")
    mode = full.lstat().st_mode if os.path.lexists(full) else None
    if mode is None or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise ForkError(
            f"--add {shlex.quote(name)} names no file of {root}", found="nothing" if mode is None else "no file",
            expected="the path of a new file, relative to the tree", fix="name each file",
        )  # fmt: skip
    return path


def _edits(
    target: Target, lock: Lock, entries: Mapping[bytes, Entry], added: Sequence[bytes], repository: Repository
) -> Effect:
    """What differs between the fork as it was applied and the files of the tree, and the files that are `added`."""
    fork = {path: held.post for path, held in lock.files.items()}
    links = paths.linked_folders(target.root, {*fork, *entries})
    if links:
        raise ForkError(
            f"{paths.on_disk(target.root, links[0])} is a link, and was a folder",
            details=[paths.show(p) for p in links],
            expected="the folder itself: what lies behind a link is not of the tree", fix="put the folder back",
        )  # fmt: skip
    found: Effect = {}
    datas: list[bytes] = []
    for path in sorted({*fork, *entries, *added}):
        if path == STAMP_PATH:
            continue
        was = fork[path] if path in fork else entries.get(path)
        have = paths.read_entry(target.root, path)
        now = have[0] if have else None
        if now != was:
            found[path] = (was, now)
            if have is not None:
                datas.append(have[1])
    repository.put(datas)
    return found


def _check_files(
    target: Target, fork: Fork, edited: Effect, entries: Mapping[bytes, Entry], repository: Repository
) -> None:
    """Refuse what the fork cannot hold, naming the file of the tree (raises `ForkError`)."""
    links = {path: now for path, (_, now) in edited.items() if now is not None and now.mode == SYMLINK}
    for path, (_, data) in repository.read(links).items():
        paths.check_symlink(path, data, where=str(target.root))
    for path, (_, now) in edited.items():
        if now is not None and now.mode == EXECUTABLE and path not in entries and path not in fork.patched:
            full = paths.on_disk(target.root, path)
            raise ForkError(
                f"{full} is executable", expected="no x bit: overlay files have none",
                fix=f"chmod a-x {shlex.quote(str(full))}",
            )  # fmt: skip


def _left(target: Target, fork: Fork, entries: Mapping[bytes, Entry], added: Sequence[bytes]) -> tuple[str, ...]:
    """What to say of new files that are not taken."""
    known = {*fork.touched, *entries, *added}
    names = [p for p in paths.walk(target.root, "vllm") if p not in known and not p.endswith(_MADE)]
    if not names:
        return ()
    shown = ", ".join(map(paths.show, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (f"new files, not taken: {shown} (--add PATH takes one into the overlay)",)


def carry_out(content: Content, target: Target, store: Store, taking: Taking, progress: Progress) -> None:
    """Write the patch into the clone, and let the tree's record know that it carries it.

    Raises:
        ForkError: the tree would not take what the clone would then have, and nothing was written; or a file cannot be
            written.
    """
    wanted, writes = taking.plan.version, taking.plan.writes
    with transaction.exclusive(target.root), tempfile.TemporaryDirectory(prefix="kunlunfork-") as name:
        version(target)
        trial = Content(Path(name).resolve(), clone=True)
        try:
            for folder in ("patches", "overlay"):
                noise = shutil.ignore_patterns("__pycache__")
                shutil.copytree(content.root / folder, trial.root / folder, symlinks=True, ignore=noise)
        except OSError as e:
            raise ForkError(
                f"{content.root} cannot be copied to try the patch", found=e.strerror or str(e),
                expected=f"files that this user may read, and space in {tempfile.gettempdir()}",
                fix="mend that, then run the command again",
            ) from e  # fmt: skip
        try:
            exportfiles.write(trial.root, writes)
            applying.apply_held(
                trial, target, store, wanted=wanted, known=taking.before, dry_run=True, progress=progress
            )
        except ForkError as e:
            raise e.renamed(str(trial.root), str(content.root)) from e
        exportfiles.write(content.root, writes)
        applying.apply_held(
            content, target, store, wanted=wanted, known=taking.before, dry_run=False, progress=progress
        )
