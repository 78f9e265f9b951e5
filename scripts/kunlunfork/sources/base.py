"""Where a new tree comes from: `--source pypi | PATH | git:URL-or-PATH`."""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kunlunfork import paths
from kunlunfork.cache import Cache
from kunlunfork.errors import ForkError
from kunlunfork.paths import SYMLINK
from kunlunfork.pins import Pin, public
from kunlunfork.progress import Progress
from kunlunfork.sources.archive import Member, members
from kunlunfork.store import Base, Store

PYPI = "pypi"


@dataclass(frozen=True)
class Settings:
    cache: Cache
    index_url: str | None
    offline: bool
    progress: Progress


def obtain(pin: Pin, source: str, store: Store, settings: Settings) -> Base | Iterator[Member]:
    """The upstream tree of a pin: a base in the store, or the files of a wheel or a folder.

    Raises:
        ForkError: it cannot be had, or is another release than the pin says (hash, commit, version).
    """
    if source == PYPI:
        return release(pin, store, settings)
    if source.startswith("git:"):
        return repository(pin, source.removeprefix("git:"), store, settings)
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise ForkError(
            f"{source} is no source of vLLM",
            expected="pypi, git:URL-or-PATH, or the path of an sdist, a wheel or an unpacked tree",
            fix=f"kunlunfork apply --vllm {pin.version}",
        )
    if path.suffix == ".whl":
        _check_wheel(path, pin)
        return members(path)
    return sdist(pin, path, store, settings.progress)


def release(pin: Pin, store: Store, settings: Settings) -> Base:
    """The sdist of a pin, from the store, else downloaded and imported."""
    known = store.find("sdist", pin.version, pin.sdist_sha256)
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

    def counted() -> Iterator[Member]:
        with progress.task(f"importing {file.name}", None) as done:
            for count, member in enumerate(members(file)):
                if count % 256 == 0:
                    done(count)
                yield member

    return store.import_members("sdist", pin.version, pin.sdist_sha256, counted())


def repository(pin: Pin, where: str, store: Store, settings: Settings) -> Base:
    """The pin's tag in a repository of the user's; a repository is only read."""
    known = next(
        (b for b in store.bases() if b.kind == "git" and b.version == pin.version and b.origin.startswith(pin.commit)),
        None,
    )
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


def _check_wheel(wheel: Path, pin: Pin) -> None:
    try:
        with zipfile.ZipFile(wheel) as z:
            name = next(n for n in z.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            with z.open(name) as f:
                from email.parser import BytesHeaderParser

                fields = BytesHeaderParser().parsebytes(f.read(1 << 20))
    except (StopIteration, zipfile.BadZipFile, RuntimeError) as e:
        raise ForkError(f"{wheel} is not a wheel", found=str(e) or "no METADATA", fix="get it again") from e
    version = str(fields["Version"] or "")
    if public(version) != public(pin.version):
        raise ForkError(
            f"{wheel} is another version of vLLM", found=version, expected=pin.version,
            fix=f"kunlunfork apply --vllm {public(version)} --source {shlex.quote(str(wheel))}",
        )  # fmt: skip


def _folder(folder: Path) -> Iterator[Member]:
    if (folder / ".git").exists():
        raise ForkError(
            f"{folder} is a git checkout",
            expected="an unpacked sdist or wheel",
            fix=f"--source git:{folder} takes the release's tag from it; --in-place {folder} changes its files",
        )
    if (folder / ".kunlunfork").exists() or any(folder.glob("*.dist-info/kunlunfork")):
        raise ForkError(
            f"{folder} carries the fork already",
            expected="an upstream tree",
            fix=f"kunlunfork apply --in-place {folder}",
        )
    return _walk(folder)


def _walk(folder: Path) -> Iterator[Member]:
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        links = [f for f in folders if (Path(top) / f).is_symlink()]
        for name in sorted([*names, *links]):
            full = Path(top) / name
            path = paths.check(paths.from_disk(full.relative_to(folder)), where=str(folder))
            found = paths.read_entry(folder, path)
            if found is None:
                raise ForkError(f"{full} vanished while it was read")
            if found[0].mode == SYMLINK:
                paths.check_symlink(path, found[1], where=str(folder))
            yield path, found[0].mode, found[1]
