"""Looking after the cache: what is there, what may go, and carrying it to a network without an index."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from filelock import FileLock

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress
from kunlunfork.sources.base import Settings, import_sdist
from kunlunfork.store import Base, Store

SCHEMA = 1
MANIFEST = "kunlunfork-cache.json"


@dataclass(frozen=True)
class Download:
    path: Path
    size: int


@dataclass(frozen=True)
class Listing:
    """Sizes are bytes. `store_size` is what the store takes on disk."""

    root: Path
    bases: tuple[Base, ...]
    downloads: tuple[Download, ...]
    store_size: int


def listing(cache: Cache) -> Listing:
    bases = Store(cache.store).bases() if cache.store.is_dir() else ()
    return Listing(cache.root, bases, tuple(_downloads(cache)), _size(cache.store))


def _downloads(cache: Cache) -> list[Download]:
    files = sorted(cache.downloads.iterdir()) if cache.downloads.is_dir() else []
    return [Download(f, f.stat().st_size) for f in files if f.is_file() and f.suffix != ".lock"]


def _size(folder: Path) -> int:
    return sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file()) if folder.is_dir() else 0


def prune(content: Content, cache: Cache, *, everything: bool, dry_run: bool) -> tuple[list[str], int]:
    """Delete what no pin needs: releases of other versions, downloads that the store has, broken downloads.

    Returns:
        (names of what went, bytes that were freed or would be).
    """
    names: list[str] = []
    before = _size(cache.root)
    if everything:
        names = [f"{b.kind} {b.version}" for b in listing(cache).bases] + [d.path.name for d in _downloads(cache)]
        if not dry_run:
            for folder in (cache.store, cache.downloads):
                shutil.rmtree(folder, ignore_errors=True)
        return names, before if dry_run else before - _size(cache.root)
    freed = 0
    pins = {v: content.pin(v) for v in content.versions()}
    store = Store(cache.store)
    kept = [b for b in store.bases() if b.version in pins]
    for base in store.bases():
        if base not in kept:
            names.append(f"{base.kind} {base.version}")
            freed += base.size
            if not dry_run:
                store.drop(base)
    have = {pins[b.version].sdist_name for b in kept if b.kind == "sdist"}
    wanted = {p.sdist_name for p in pins.values()} - have
    for download in _downloads(cache):
        if download.path.name.removesuffix(".part") not in wanted:
            names.append(download.path.name)
            freed += download.size
            if not dry_run:
                with _held(download.path.with_name(download.path.name.removesuffix(".part"))):
                    download.path.unlink(missing_ok=True)
    if not dry_run:
        store.collect()
        freed = before - _size(cache.root)
    return names, max(freed, 0)


def export(content: Content, versions: Sequence[str], file: Path, settings: Settings) -> tuple[Pin, ...]:
    """Write the sdists of these pins (all, where none is named) into one file, for a machine without an index.

    Raises:
        ForkError: one is neither in the cache nor to be had, or `file` cannot be written.
    """
    from kunlunfork.sources.pypi import fetch_sdist

    pins = tuple(content.pin(v) for v in versions or content.versions())
    files = [
        fetch_sdist(
            pin,
            settings.cache.downloads,
            index_url=settings.index_url,
            offline=settings.offline,
            progress=settings.progress,
        )
        for pin in pins
    ]
    manifest = {"schema": SCHEMA, "sdists": [{"version": p.version, "name": p.sdist_name} for p in pins]}
    data = json.dumps(manifest, indent=1).encode()
    temporary = file.with_name(f".{file.name}.new")
    try:
        with tarfile.open(temporary, "w") as tar:
            info = tarfile.TarInfo(MANIFEST)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            for pin, path in zip(pins, files, strict=True):
                tar.add(path, arcname=pin.sdist_name, recursive=False)
        temporary.replace(file)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ForkError(f"{file} cannot be written", found=e.strerror or str(e)) from e
    return pins


def load(content: Content, file: Path, cache: Cache, progress: Progress) -> tuple[Base, ...]:
    """Take the sdists of an exported file into the cache. Each must have the hash that its pin says.

    Raises:
        ForkError: not such a file, a release without a pin, or another hash.
    """
    store = Store(cache.store)
    bases = []
    try:
        with tarfile.open(file, "r:") as tar:
            members = {m.name: m for m in tar if m.isreg()}
            for name, pin in _manifest(content, tar, members, file):
                if name not in members:
                    raise ForkError(f"{file} lacks {name}", fix="export it again: kunlunfork cache export FILE")
                body = tar.extractfile(members[name])
                assert body is not None
                path = _take(body, pin, cache)
                bases.append(import_sdist(pin, path, store, progress))
    except (tarfile.TarError, EOFError, OSError) as e:
        raise ForkError(
            f"{file} is not a cache file of kunlunfork",
            found=getattr(e, "strerror", None) or str(e),
            expected="what `kunlunfork cache export FILE` writes",
        ) from e
    return tuple(bases)


def _manifest(
    content: Content, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], file: Path
) -> list[tuple[str, Pin]]:
    body = tar.extractfile(members[MANIFEST]) if MANIFEST in members else None
    try:
        raw = json.loads(body.read(1 << 20)) if body is not None else {}
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}")
        wanted = [(str(s["name"]), str(s["version"])) for s in raw["sdists"]]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise ForkError(
            f"{file} is not a cache file of kunlunfork",
            found=f"its {MANIFEST} says nothing that is known here ({e})",
            expected="what `kunlunfork cache export FILE` writes",
        ) from e
    return [(name, content.pin(version)) for name, version in wanted]


def _take(body: IO[bytes], pin: Pin, cache: Cache) -> Path:
    cache.downloads.mkdir(parents=True, exist_ok=True)
    final = cache.downloads / pin.sdist_name
    temporary = final.with_name(f".{final.name}.import")
    digest, size = sha256(), 0
    try:
        with temporary.open("wb") as out:
            while size <= pin.sdist_size and (chunk := body.read(1 << 20)):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
        if digest.hexdigest() != pin.sdist_sha256:
            raise ForkError(
                f"the {pin.sdist_name} in the cache file is not the release",
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {pin.sdist_sha256}",
                fix="export it again: kunlunfork cache export FILE",
            )
        with _held(final):
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return final


def _held(download: Path) -> FileLock:
    """The lock that a process which downloads this file holds (`sources/pypi.py`)."""
    return FileLock(f"{download}.lock")
