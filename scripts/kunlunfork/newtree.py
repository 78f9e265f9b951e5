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
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from kunlunfork import exportfiles, gittree, paths, steps, transaction
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
from kunlunfork.sources.archive import Member
from kunlunfork.sources.distinfo import SITE_FOLDERS
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
    entries = store.entries(base.tree)
    touched = fork.touched
    before: Files = dict.fromkeys(touched)
    before.update(store.read({p: e for p, e in entries.items() if p in touched}))
    forks.check_base(fork, before, where=f"the {base.kind} of vLLM {base.version}")
    post = forks.build(fork, before)
    info = TreeInfo(folder, "plain", None, None, base.version, None, _KINDS[base.kind])  # type: ignore[arg-type]
    perms = {p: journals.fresh_perm(e[0].mode) for p, e in before.items() if e is not None}
    lock = make_lock(fork, info, before, post, perms, _added_folders(entries, post))
    written = tuple(p for p, h in lock.files.items() if h.post != h.pre and h.post is not None)
    removed = tuple(p for p, h in lock.files.items() if h.post is None)
    outcome = Outcome(
        "applied", folder, fork.pin.version, tuple(p.name for p in fork.patches), written, removed,
        fork.series_hash, fork.overlay_hash, None, dry_run,
    )  # fmt: skip
    if dry_run:
        return outcome
    with _staging(folder) as staging:
        rest = {p: e for p, e in entries.items() if p not in touched}
        _fill_from_store(staging, store, list(rest.items()), progress)
        with _shown_as(f"the {base.kind} of vLLM {base.version}", staging):
            _lay(staging, post)
        if as_git:
            progress.note("making commits")
            gittree.make(staging, fork, base, before, store)
        _state(gittree.state(staging) if as_git else staging / PLAIN_STATE, lock, before)
        if as_git:
            exportfiles.save(gittree.state(staging), exportfiles.made_from(fork), clone)
        _verify(staging, lock)
    return outcome


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
        staging = stack.enter_context(_staging(place))
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
def _staging(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that becomes it at the end; a killed process leaves one that `_sweep` removes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        staging = folder.parent / f"{_prefix(folder)}{secrets.token_hex(4)}"
        staging.mkdir()
        fd = os.open(staging, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield staging
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


def _fill_from_store(root: Path, store: Store, entries: list[tuple[bytes, Entry]], progress: Progress) -> None:
    """Write these files from two threads: most of the time goes into system calls, and git answers both at once."""
    half = len(entries) // 2
    stop = threading.Event()

    def members(part: list[tuple[bytes, Entry]]) -> Iterator[Member]:
        blobs = store.blobs([entry.blob for _, entry in part])
        for (path, entry), data in zip(part, blobs, strict=True):
            if stop.is_set():
                return
            yield path, entry.mode, data

    with progress.task("writing files", len(entries)) as done, ThreadPoolExecutor(2) as pool:
        parts = entries[:half], entries[half:]
        running = [pool.submit(_fill, root, members(part), lambda n: done(2 * n)) for part in parts]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for each in running:
            each.result()


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


def _lay(root: Path, post: Files) -> None:
    for path, value in post.items():
        if value is not None:
            entry, data = value
            # Upstream may have a link where the fork has a folder.
            transaction.check_parents(root, path)
            full = paths.on_disk(root, path)
            full.parent.mkdir(parents=True, exist_ok=True)
            write_file(full, data, entry.mode, journals.fresh_perm(entry.mode))


def _state(state: Path, lock: locks.Lock, before: Files) -> None:
    (state / PRE).mkdir(parents=True)
    if state.name == PLAIN_STATE:
        journals.hide(state)
    keep = lock.pre_blobs()
    perm = journals.fresh_perm(paths.REGULAR)
    for blob, data in transaction.collect_data(before).items():
        if blob in keep:
            write_file(state / PRE / blob, data, paths.REGULAR, perm)
    write_file(state / locks.NAME, locks.dump(lock), paths.REGULAR, perm)


def _verify(root: Path, lock: locks.Lock) -> None:
    """Read the fork's files back. The others were compared with their blob ids on the way from the store."""
    for path, held in lock.files.items():
        have = paths.read_entry(root, path)
        if (have[0] if have else None) != held.post:
            raise OSError(f"{paths.show(path)} did not keep the bytes that were written")
