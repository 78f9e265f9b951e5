"""A new fork tree in a folder of its own, made from a release in the store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork import checkout, paths, steps, transaction
from kunlunfork import fork as forks
from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork.apply import Outcome, apply_held, make_lock
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.journal import PLAIN_STATE, PRE, write_file
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.progress import Progress
from kunlunfork.sources.distinfo import SITE_FOLDERS
from kunlunfork.sources.members import Member
from kunlunfork.sources.tree import TreeInfo
from kunlunfork.stages import Files
from kunlunfork.store import Base, Store
from kunlunfork.target import of_tree

_KINDS = {"sdist": "sdist", "wheel": "wheel", "git": "checkout"}


def is_free(folder: Path) -> bool:
    """Whether a tree may be made here: nothing, or an empty folder that a rename can replace.

    Raises:
        ForkError: a file or a dangling link is there or above, the folder cannot be read, or cannot be replaced.
    """
    try:
        above = next((f for f in folder.parents if os.path.lexists(f)), folder)
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{above} is not a folder")
        if _there(folder) and any(folder.iterdir()):
            return False
    except OSError as e:
        raise ForkError(
            f"{folder} cannot be a fork tree", found=e.strerror or str(e), expected="a folder, or nothing",
            fix="name another folder",
        ) from e  # fmt: skip
    _check_place(folder)
    return True


def _there(path: Path) -> bool:
    """Like `os.path.lexists`, but a name that cannot be is an OSError."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _check_place(folder: Path) -> None:
    """Refuse a place that a new tree cannot take, or in which it could not be used (raises `ForkError`)."""
    inner = shlex.quote(str(folder / "vllm-kunlun"))
    if folder.name in SITE_FOLDERS:
        found = "a name that stands for an interpreter's packages"
    elif os.path.ismount(folder):
        found = "a mount point"
    elif folder.is_dir() and folder.samefile(os.curdir):
        # Its shell, and whatever else is in it, would be left in a folder that is gone.
        found = "the current folder"
    else:
        return
    raise ForkError(
        f"{folder} cannot become a fork tree: a tree is made beside its place and moved there",
        found=found,
        expected="a folder of its own",
        fix=f"name another, such as {inner}",
    )


def create(
    fork: Fork, base: Base, store: Store, folder: Path, *, as_git: bool = False, clone: Path | None = None,
    dry_run: bool, progress: Progress,
) -> Outcome:  # fmt: skip
    """Make the tree beside its place and move it there by one rename: it is whole or it is not there.

    Args:
        as_git: make it a git repository, see `gittree`.
        clone: the clone that the fork comes from, which an export writes to.

    Raises:
        ForkError: the release is not as the patches expect (exit 3), the folder is taken, no space, no permission.
    """
    if dry_run:
        return _plan(fork, base, store, folder).outcome(dry_run=True)
    with _staging(folder) as (staging, lock):
        progress.note("writing files")
        with _shown_as(f"the {base.kind} of vLLM {base.version}", staging):
            with checkout.writing(store, base.tree, staging, lock):
                plan = _plan(fork, base, store, folder)
            _lay(staging, plan.before, plan.post)
        if as_git:
            from kunlunfork import exportfiles, gittree  # much that no other tree needs

            progress.note("making commits")
            gittree.make(staging, fork, base, plan.before, store)
            _state(gittree.state(staging), plan)
            exportfiles.save(gittree.state(staging), exportfiles.made_from(fork), clone)
        else:
            _state(staging / PLAIN_STATE, plan)
        _verify(staging, plan.lock)
    return plan.outcome(dry_run=False)


@dataclass(frozen=True)
class _Plan:
    """What lies at the paths that the fork touches, before it and after it."""

    fork: Fork
    folder: Path
    before: Files
    post: Files
    lock: locks.Lock

    def outcome(self, *, dry_run: bool) -> Outcome:
        files = self.lock.files.items()
        return Outcome(
            "applied", self.folder, self.fork.pin.version, tuple(p.name for p in self.fork.patches),
            tuple(p for p, h in files if h.post != h.pre and h.post is not None),
            tuple(p for p, h in files if h.post is None),
            self.fork.series_hash, self.fork.overlay_hash, None, dry_run,
        )  # fmt: skip


def _plan(fork: Fork, base: Base, store: Store, folder: Path) -> _Plan:
    entries = store.entries(base.tree)
    touched = fork.touched
    before: Files = dict.fromkeys(touched)
    for path, (entry, data) in store.read(
        {p: e for p, e in entries.items() if p in touched or e.mode == SYMLINK}
    ).items():
        if entry.mode == SYMLINK:
            paths.check_symlink(path, data, where="the upstream tree")
        if path in touched:
            before[path] = entry, data
    forks.check_base(fork, before, where=f"the {base.kind} of vLLM {base.version}")
    post = forks.build(fork, before)
    info = TreeInfo(folder, "plain", None, None, base.version, None, _KINDS[base.kind])  # type: ignore[arg-type]
    perms = {p: journals.fresh_perm(e[0].mode) for p, e in before.items() if e is not None}
    lock = make_lock(fork, info, before, post, perms, _added_folders(entries, post))
    return _Plan(fork, folder, before, post, lock)


def create_from_files(
    content: Content,
    files: Iterable[Member],
    store: Store,
    folder: Path,
    *,
    source: str,
    wanted: str,
    link: bool | None = None,
    dry_run: bool,
    progress: Progress,
) -> Outcome:
    """`create` from a wheel's or a folder's files, which are unpacked beside `folder` and then patched there.

    A dry run does that in a temporary folder. `source` is what the files are called in messages.
    """
    with contextlib.ExitStack() as stack:
        place = folder
        if dry_run:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kunlunfork-"))) / folder.name
        staging, _ = stack.enter_context(_staging(place))
        with progress.task("writing files", None) as done:
            _fill(staging, files, done)
        stack.enter_context(_shown_as(source, staging))
        outcome = apply_held(
            content, of_tree(staging), store, wanted=wanted, link=link, dry_run=dry_run, progress=progress
        )
    return replace(outcome, root=folder)


@contextlib.contextmanager
def _shown_as(source: str, staging: Path) -> Iterator[None]:
    """Errors about a staging folder, which is gone when they are read, name where its files come from."""
    try:
        yield
    except ForkError as e:
        own = str(staging.resolve())
        fix = "name another source, such as --source pypi" if own in (e.fix or "") else e.fix
        message, found, expected, *details = (
            text and text.replace(own, source) for text in (e.message, e.found, e.expected, *e.details)
        )
        raise ForkError(
            message or "", found=found, expected=expected, fix=fix, details=[d or "" for d in details],
            exit_code=e.exit_code,
        ) from e  # fmt: skip


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[tuple[Path, int]]:
    """A folder beside `folder` that becomes it at the end, and the descriptor of its lock.

    A killed process leaves one that `_sweep` removes.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        staging = folder.parent / f"{_prefix(folder)}{secrets.token_hex(4)}"
        staging.mkdir()
        fd = os.open(staging, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield staging, fd
            steps.checkpoint("rename tree")
            staging.rename(folder)
        finally:
            os.close(fd)
            if staging.exists():
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as e:
        taken = e.errno in (errno.ENOTEMPTY, errno.EEXIST)
        raise ForkError(
            f"{folder} cannot be made; nothing was left behind",
            found="another process made it meanwhile" if taken else e.strerror or str(e),
            expected="a place that this user may write, with space for the tree",
            fix="run the command again" if taken else "name another folder, or make space",
        ) from e


def _added_folders(entries: dict[bytes, Entry], post: Files) -> tuple[bytes, ...]:
    return tuple(sorted(_folders(p for p, value in post.items() if value) - _folders(entries)))


def _folders(files: Iterable[bytes]) -> set[bytes]:
    """Every folder above these files."""
    found: set[bytes] = set()
    for path in files:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return found


def _prefix(folder: Path) -> str:
    # Cut: the whole name has to fit into 255 bytes.
    return f".{os.fsdecode(os.fsencode(folder.name)[:200])}.kunlunfork-"


def _sweep(folder: Path) -> None:
    """Remove what killed processes left while they made this tree; a live one holds a lock on its own."""
    try:
        names = os.listdir(folder.parent)  # noqa: PTH208
    except PermissionError:  # which does not keep a tree from being made there
        return
    for old in (folder.parent / name for name in names):
        if not old.name.startswith(_prefix(folder)) or old.is_symlink() or not old.is_dir():
            continue
        with contextlib.suppress(ForkError), transaction.exclusive(old):
            shutil.rmtree(old)


def _fill(root: Path, files: Iterable[Member], done: Callable[[int], None]) -> None:
    made: set[bytes] = set()
    top = os.fsencode(root)
    perms = {mode: journals.fresh_perm(mode) for mode in paths.MODES}
    for count, (path, mode, data) in enumerate(files):
        parent = path.rpartition(b"/")[0]
        if parent not in made:
            os.makedirs(top + b"/" + parent, exist_ok=True)  # noqa: PTH103  (bytes, and 6,000 of them)
            made.add(parent)
        if mode == SYMLINK:
            paths.check_symlink(path, data, where="the upstream tree")
            os.symlink(data, top + b"/" + path)  # noqa: PTH211  (bytes)
        else:
            # Like write_file, without a chmod: nobody else can reach the file yet, so the umask may give its bits.
            fd = os.open(top + b"/" + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, perms[mode])
            try:
                if os.write(fd, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        if count % 256 == 0:
            steps.checkpoint("fill")
            done(count)


def _lay(root: Path, before: Files, post: Files) -> None:
    """Put the fork's files in the place of upstream's."""
    top = os.fsencode(root)
    for path in [p for p, value in before.items() if value is not None]:
        os.unlink(top + b"/" + path)  # noqa: PTH108  (bytes)
        with contextlib.suppress(OSError):  # until a folder that is not empty
            for folder in reversed(paths.parents(path)):
                os.rmdir(top + b"/" + folder)  # noqa: PTH106  (bytes)
    made: set[bytes] = set()
    for path, value in post.items():
        if value is not None:
            entry, data = value
            full = paths.on_disk(root, path)
            parent = path.rpartition(b"/")[0]
            if parent not in made:
                # Upstream may have a link where the fork has a folder.
                transaction.check_parents(root, path)
                full.parent.mkdir(parents=True, exist_ok=True)
                made.add(parent)
            write_file(full, data, entry.mode, journals.fresh_perm(entry.mode))


def _state(state: Path, plan: _Plan) -> None:
    (state / PRE).mkdir(parents=True)
    if state.name == PLAIN_STATE:
        journals.hide(state)
    keep = plan.lock.pre_blobs()
    perm = journals.fresh_perm(paths.REGULAR)
    for blob, data in transaction.collect_data(plan.before).items():
        if blob in keep:
            write_file(state / PRE / blob, data, paths.REGULAR, perm)
    write_file(state / locks.NAME, locks.dump(plan.lock), paths.REGULAR, perm)


def _verify(root: Path, lock: locks.Lock) -> None:
    """Read the fork's files back. The others were written by git, which would have said what it could not write."""
    for path, held in lock.files.items():
        have = paths.read_entry(root, path)
        if (have[0] if have else None) != held.post:
            raise OSError(f"{paths.show(path)} did not keep the bytes that were written")
