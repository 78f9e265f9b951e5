"""Where a new tree comes from: `--source pypi | PATH | git:URL-or-PATH`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kunlunfork import walk
from kunlunfork.cache import Cache
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress
from kunlunfork.sources.members import Checked, Member
from kunlunfork.store import Base, Store

PYPI = "pypi"


@dataclass(frozen=True)
class Settings:
    cache: Cache
    index_url: str | None
    offline: bool
    progress: Progress


def obtain(pin: Pin, source: str, tree: Path, store: Store, settings: Settings) -> Base | Iterator[Member]:
    """The upstream tree of a pin: a base in the store, or the files of a wheel or a folder. `tree` will be made of it.

    Raises:
        ForkError: it cannot be had, or is another release than the pin says (hash, commit, version).
    """
    if source == PYPI:
        return release(pin, store, settings)
    if source.startswith("git:") and source != "git:":
        return repository(pin, source.removeprefix("git:"), store, settings)
    path = Path(source)
    try:
        if source and path.is_dir():
            return _folder(path, tree, pin.version)
        if not source or not path.is_file():
            raise ForkError(
                f"{source!r} is no source of vLLM",
                expected="pypi, git:URL-or-PATH, or the path of an sdist, a wheel or an unpacked tree",
                fix=f"kunlunfork apply --vllm {pin.version}",
            )
        if path.suffix == ".whl":
            from kunlunfork.sources import wheel

            return wheel.members(path, pin)
        return sdist(pin, path, store, settings.progress)
    except OSError as e:
        raise ForkError(
            f"{source} cannot be read", found=e.strerror or str(e), expected="what this user may read"
        ) from e


def release(pin: Pin, store: Store, settings: Settings) -> Base:
    """The sdist of a pin, from the store, else downloaded and imported."""
    known = store.release(pin, "sdist")
    if known is not None:
        return known
    from kunlunfork.sources.pypi import fetch_sdist  # requests and pypi-simple take 0.2 s to import

    file = fetch_sdist(
        pin,
        settings.cache.downloads,
        index_url=settings.index_url,
        offline=settings.offline,
        progress=settings.progress,
    )
    return import_sdist(pin, file, store, settings.progress)


def sdist(pin: Pin, file: Path, store: Store, progress: Progress) -> Base:
    """An sdist file that lies somewhere, if it is the pin's."""
    with file.open("rb") as f:
        digest = sha256()
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != pin.sdist_sha256:
        raise ForkError(
            f"{file} is not the sdist of vLLM {pin.version}",
            found=f"SHA-256 {digest.hexdigest()}",
            expected=f"SHA-256 {pin.sdist_sha256}",
            fix=f"get {pin.sdist_name} from the package index, or leave --source out",
        )
    return import_sdist(pin, file, store, progress)


def import_sdist(pin: Pin, file: Path, store: Store, progress: Progress) -> Base:
    """Store an sdist whose hash was checked."""
    from kunlunfork.sources.archive import members

    def counted() -> Iterator[Member]:
        with progress.task(f"importing {file.name}", None) as done:
            for count, member in enumerate(members(file)):
                if count % 256 == 0:
                    done(count)
                yield member

    return store.import_members("sdist", pin.version, pin.sdist_sha256, counted())


def repository(pin: Pin, where: str, store: Store, settings: Settings) -> Base:
    """The pin's tag in a repository of the user's; a repository is only read."""
    known = store.release(pin, "git")
    if known is not None:
        return known
    local = Path(where)
    if local.exists():
        # As a URL: git ignores --depth for a plain path, and takes all the history.
        where = local.resolve().as_uri()
    elif settings.offline:
        raise ForkError(
            f"{_without_secret(where)} is not in the store and --offline forbids to fetch it",
            fix="run the same command once without --offline",
        )
    shown = _without_secret(where)
    settings.progress.note(f"fetching {pin.tag} from {shown}")
    return store.fetch(where, pin.tag, pin.version, pin.commit, shown=shown)


def _without_secret(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return url if not separator or "@" not in rest.split("/")[0] else f"{scheme}://{rest.rpartition('@')[2]}"


def _folder(folder: Path, tree: Path, version: str) -> Iterator[Member]:
    if tree.resolve().is_relative_to(folder.resolve()):
        beside = folder.resolve().parent / f"vllm-{version}-kunlun"
        raise ForkError(
            f"{tree} lies inside its source {folder}",
            expected="a new tree outside of it",
            fix=f"kunlunfork apply --vllm {version} --source {shlex.quote(str(folder))} {shlex.quote(str(beside))}",
        )
    if os.path.lexists(folder / ".git"):
        quoted = shlex.quote(str(folder))
        raise ForkError(
            f"{folder} is a git checkout",
            expected="an unpacked sdist or wheel",
            fix=f"--source git:{quoted} takes the release's tag from it; --in-place {quoted} changes its files",
        )
    if (folder / ".kunlunfork").exists() or any(folder.glob("*.dist-info/kunlunfork")):
        raise ForkError(
            f"{folder} carries the fork already",
            expected="an upstream tree",
            fix=f"kunlunfork apply --in-place {shlex.quote(str(folder))}",
        )
    return _files(folder)


def _files(folder: Path) -> Iterator[Member]:
    checked = Checked(str(folder))
    for path, entry, data in walk.files(folder, skip=("__pycache__",)):
        checked.add(path, entry.mode, data)
        yield path, entry.mode, data
    checked.end()
