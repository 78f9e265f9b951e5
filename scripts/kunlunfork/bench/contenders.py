"""Who competes in `bench apply`: kunlunfork, git and quilt, each doing its job the way its user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import cache, git, make, paths
from kunlunfork.bench.measure import Step
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.patchfile import Patch
from kunlunfork.progress import Silent
from kunlunfork.sources.base import PYPI, Settings, import_sdist
from kunlunfork.store import Base, Store

# Folders in that of a round.
NEW, NEW_INSIDE, UNPACKED, QUILT, AM = "new", "new-inside", "unpacked", "quilt", "am"


@dataclass(frozen=True)
class Field:
    """What the contenders work on: a fork, the release's sdist, and a cache of the benchmark's own."""

    content: Content
    fork: Fork
    sdist: Path
    scratch: Path

    @property
    def cache(self) -> Cache:
        return Cache(self.scratch / "cache")

    @property
    def top(self) -> str:
        """The sdist's only folder."""
        return self.fork.pin.sdist_name.removesuffix(".tar.gz")


def _run(command: Sequence[str | bytes | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, env=env, cwd=cwd, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise ForkError(
            f"{os.fsdecode(command[0])} failed, so there is nothing to compare",
            found=said[-1] if said else f"exit status {done.returncode}",
            details=said[:-1],
        )


def kunlunfork(field: Field, *args: str | Path) -> None:
    """Run a verb as its user does: a new process, start-up included."""
    env = {**os.environ, cache.ENV: str(field.cache.root)}
    # Bytecode is there, as after an installation, also where this environment keeps Python from writing it.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPYCACHEPREFIX"] = str(field.scratch / "bytecode")
    _run([sys.executable, "-m", "kunlunfork", *args], env)


def mail(patch: Patch) -> bytes:
    """A patch as `git am` takes it, whatever its own head has."""
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        f"From: {patch.header.from_ or 'kunlunfork <kunlunfork@invalid>'}\n"
        f"Date: {patch.header.date or 'Thu, 1 Jan 1970 00:00:00 +0000'}\n"
        f"Subject: [PATCH] {patch.header.subject or patch.name}\n\n---\n"
    )
    return head.encode("utf-8", "surrogateescape") + patch.diff


def _write_series(field: Field) -> tuple[tuple[Path, ...], Path]:
    """The series as mails for `git am`, and as a folder for quilt."""
    mails, quilt = field.scratch / "mails", field.scratch / "patches"
    mails.mkdir()
    quilt.mkdir()
    for number, patch in enumerate(field.fork.patches):
        (mails / f"{number:04}").write_bytes(mail(patch))
        (quilt / patch.name).write_bytes(patch.raw)
    (quilt / "series").write_text("".join(f"{patch.name}\n" for patch in field.fork.patches))
    return tuple(sorted(mails.iterdir())), quilt


def steps(field: Field, *, quilt: bool) -> tuple[Step, ...]:
    """All contenders, each next to those that it is compared with.

    The store of `field.cache` is filled first, so that it is warm. Without `quilt` its step is left out.

    Raises:
        ForkError: the release cannot be imported.
    """
    pin = field.fork.pin
    repo = ("--repo", field.content.root)
    store = Store(field.cache.store)
    base = import_sdist(pin, field.sdist, store, Silent())
    settings = Settings(field.cache, None, True, Silent())
    mails, series = _write_series(field)

    def new(folder: Path) -> None:
        kunlunfork(field, "apply", "--vllm", pin.version, "--offline", *repo, folder / NEW)

    def new_inside(folder: Path) -> None:
        make.new_or_update(field.content, pin.version, folder / NEW_INSIDE, PYPI, store, settings, dry_run=False)

    def worktree(folder: Path) -> None:
        store.git("worktree", "add", "--quiet", "--detach", folder / "worktree", base.ref)

    def clone_am(folder: Path) -> None:
        _clone_am(store, base, folder / AM, mails)

    def import_(folder: Path) -> None:
        import_sdist(pin, field.sdist, Store(folder / "store.git"), Silent())

    def unpack(folder: Path) -> None:
        folder.mkdir()
        _run(["tar", "xzf", field.sdist, "-C", folder])

    def push(folder: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("QUILT")}
        env = {**own, "QUILT_PATCHES": str(series)}
        _run(["quilt", "--quiltrc", "-", "push", "-a", "-q"], env, folder / QUILT / field.top)

    def in_place(folder: Path) -> None:
        kunlunfork(field, "apply", "--vllm", pin.version, "--in-place", *repo, folder / UNPACKED / field.top)

    def prune(folder: Path) -> None:
        store.git("worktree", "prune")

    every = [
        Step("new", "kunlunfork apply --vllm, store warm: series and overlay, a new process", new),
        Step("new, in process", "the same without Python's start", new_inside),
        Step("worktree add", "git worktree add of upstream's tree from the same store", worktree, prune),
        Step("clone, am", "git clone --shared, checkout and am: the series", clone_am),
        Step("import", "sdist into an empty store", import_),
        Step("tar", "tar xzf of the sdist", lambda folder: unpack(folder / UNPACKED)),
        Step("in place", "kunlunfork apply --in-place on what tar unpacked", in_place),
        Step("help", "kunlunfork --help", lambda folder: kunlunfork(field, "--help")),
    ]
    if quilt:
        what = "quilt push -a on what tar unpacked: the series"
        every.insert(7, Step("quilt", what, push, lambda folder: unpack(folder / QUILT)))
    return tuple(every)


def _clone_am(store: Store, base: Base, folder: Path, mails: Sequence[Path]) -> None:
    commit = store.git("rev-parse", base.ref).decode().strip()
    git.run(["clone", "--quiet", "--shared", "--no-checkout", store.path, folder])
    git.run(["checkout", "--quiet", "--detach", commit], cwd=folder)
    if mails:
        git.run(["am", "--quiet", "--keep-cr", *mails], cwd=folder)


def check_same(field: Field, folder: Path) -> None:
    """Refuse a round in which the contenders did not all leave the same patched files.

    Raises:
        ForkError: naming the file and who differs.
    """
    trees = [NEW, NEW_INSIDE, AM, f"{UNPACKED}/{field.top}", f"{QUILT}/{field.top}"]
    for path in sorted(field.fork.patched):
        found = {t: paths.read_entry(folder / t, path) for t in trees if (folder / t).is_dir()}
        differ = [t for t, have in found.items() if have != found[NEW]]
        if differ:
            raise ForkError(
                f"{paths.show(path)} is not the same after each contender, so their times do not compare",
                found=f"{', '.join(differ)} differ from what kunlunfork apply made",
                fix="kunlunfork lint; a patch may need more context",
            )
