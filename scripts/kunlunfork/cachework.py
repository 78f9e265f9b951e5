"""Looking after the cache: what is there, what may go, and carrying it to a network without an index."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from kunlunfork import outfile
from kunlunfork.cache import ENV, Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.filelocks import held
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress
from kunlunfork.sources.base import Settings, import_sdist
from kunlunfork.store import Base, Store

SCHEMA = 1
MANIFEST = "kunlunfork-cache.json"


# What may lie in the cache and be deleted from it. A cache folder can be one that holds other things, too.
_DOWNLOAD = re.compile(r"\.?(?P<sdist>vllm-[0-9][^/]*\.tar\.gz)(?P<what>|\.part|\.import)")
_ENGINE = re.compile(r"[^/]+-py\d+\.\d+-[0-9a-f]{10}")


@dataclass(frozen=True)
class Item:
    """A file or a folder of the cache; `size` in bytes."""

    path: Path
    size: int


@dataclass(frozen=True)
class Listing:
    """Sizes are bytes. `store_size` is what the store takes on disk; `results` are those of `matrix run`."""

    root: Path
    bases: tuple[Base, ...]
    downloads: tuple[Item, ...]
    engines: tuple[Item, ...]
    results: tuple[Item, ...]
    store_size: int


def listing(cache: Cache) -> Listing:
    with _disk(cache):
        engines = tuple(Item(folder, _size(folder)) for folder in _engines(cache))
        folder = cache.root / "results"
        results = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        return Listing(
            cache.root,
            Store(cache.store).bases(),
            tuple(_downloads(cache)),
            engines,
            tuple(Item(f, f.stat().st_size) for f in results),
            _size(cache.store),
        )


def strangers(cache: Cache) -> list[str]:
    """What `prune` leaves alone, because it is not known to be kunlunfork's; said in words."""
    with _disk(cache):
        if cache.downloads.is_symlink():
            return [f"{cache.downloads} is a link; what it leads to is left alone"]
        if not cache.downloads.is_dir():
            return []
        own = {d.path.name for d in _downloads(cache)}
        others = sorted(f.name for f in cache.downloads.iterdir() if f.name.removesuffix(".lock") not in own)
        others = [name for name in others if not _DOWNLOAD.fullmatch(name.removesuffix(".lock"))]
        return [f"left alone in {cache.downloads}: {', '.join(others)}"] if others else []


def _downloads(cache: Cache) -> list[Item]:
    if not cache.downloads.is_dir():
        return []
    files = [f for f in sorted(cache.downloads.iterdir()) if _DOWNLOAD.fullmatch(f.name)]
    return [Item(f, st.st_size) for f in files if stat.S_ISREG((st := f.lstat()).st_mode)]


def _engines(cache: Cache) -> list[Path]:
    """The environments of `matrix`, finished or not."""
    folder = cache.root / "engines"
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [f for f in sorted(folder.iterdir()) if _ENGINE.fullmatch(f.name) and f.is_dir() and not f.is_symlink()]


def _size(folder: Path) -> int:
    size = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # git at work
                size += (Path(top) / name).lstat().st_size
    return size


@contextlib.contextmanager
def _disk(cache: Cache) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise ForkError(
            f"the cache {cache.root} cannot be read or changed",
            found=f"{e.filename or cache.root}: {e.strerror or e}",
            expected="a folder that this user may write",
            fix=f"see to its permissions, or name another: {ENV}=DIR",
        ) from e


def prune(content: Content | None, cache: Cache, *, everything: bool, dry_run: bool) -> tuple[list[str], int]:
    """Delete what no pin needs: releases of other versions, downloads that the store has, broken downloads.

    With `everything` the store, whatever its state, all downloads and the engine environments; then `content` is not
    needed. What is not ours stays: see `strangers`.

    Returns:
        (names of what went, bytes that were freed or would be).
    """
    with _disk(cache):
        if everything or content is None:
            return _clear(cache, dry_run)
        return _prune(content, cache, dry_run)


def _clear(cache: Cache, dry_run: bool) -> tuple[list[str], int]:
    store = Store(cache.store)
    freed = _size(store.path) if store.is_there() else 0
    try:
        names = [f"{b.kind} {b.version}" for b in store.bases()]
    except ForkError:
        names = ["the store, which is damaged"]
    if not dry_run:
        store.delete()
    downloads = [] if cache.downloads.is_symlink() else _downloads(cache)
    for download in downloads:
        names.append(download.path.name)
        freed += download.size
        if not dry_run:
            _unlink(download.path)
    for engine in _engines(cache):
        names.append(f"engine {engine.name}")
        freed += _size(engine)
        if not dry_run:
            with held(engine.with_name(f"{engine.name}.lock")):
                shutil.rmtree(engine)
                engine.with_name(f"{engine.name}.log").unlink(missing_ok=True)
    return names, freed


def _prune(content: Content, cache: Cache, dry_run: bool) -> tuple[list[str], int]:
    names: list[str] = []
    freed = 0
    pins = {v: content.pin(v) for v in content.versions()}
    store = Store(cache.store)
    before = _size(store.path)
    kept = [b for b in store.bases() if b.version in pins and b == store.release(pins[b.version], b.kind)]
    for base in store.bases():
        if base not in kept:
            names.append(f"{base.kind} {base.version}")
            if dry_run:
                freed += base.size
            else:
                store.drop(base)
    if not dry_run and store.is_there():
        store.collect()  # before downloads go: where the store is damaged, they are what there is
        freed += max(before - _size(store.path), 0)
    have = {pins[b.version].sdist_name for b in kept if b.kind == "sdist"}
    wanted = {p.sdist_name for p in pins.values()} - have
    for download in [] if cache.downloads.is_symlink() else _downloads(cache):
        match = _DOWNLOAD.fullmatch(download.path.name)
        if match is None or match["sdist"] not in wanted:
            names.append(download.path.name)
            freed += download.size
            if not dry_run:
                _unlink(download.path)
    return names, freed


def _unlink(download: Path) -> None:
    match = _DOWNLOAD.fullmatch(download.name)
    assert match is not None
    # The lock that a process which downloads this file holds (`sources/pypi.py`).
    with held(download.with_name(f"{match['sdist']}.lock")):
        download.unlink(missing_ok=True)


def export(content: Content, versions: Sequence[str], file: Path, settings: Settings) -> tuple[Pin, ...]:
    """Write the sdists of these pins (all, where none is named) into one file, for a machine without an index.

    Raises:
        ForkError: one is neither in the cache nor to be had, or `file` cannot be written.
    """
    from kunlunfork.sources.pypi import fetch_sdist

    outfile.check(file)
    pins = tuple(content.pin(v) for v in versions or content.versions())
    for pin in pins if settings.offline else ():
        if not (settings.cache.downloads / pin.sdist_name).exists() and Store(settings.cache.store).release(
            pin, "sdist"
        ):
            raise ForkError(
                f"{pin.sdist_name} is not in the cache any more",
                found="its files in the store, which cannot give the archive back byte for byte",
                expected="the archive as the index has it",
                fix=f"once online: kunlunfork cache export --vllm {pin.version} {shlex.quote(str(file))}",
            )
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
    with outfile.writing(file) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
        for pin, path in zip(pins, files, strict=True):
            tar.add(path, arcname=pin.sdist_name, recursive=False)
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
    final = cache.downloads / pin.sdist_name
    temporary = final.with_name(f".{final.name}.import")
    digest, size = sha256(), 0
    try:
        with _disk(cache):
            cache.downloads.mkdir(parents=True, exist_ok=True)
            out = temporary.open("wb")
        with out:
            while size <= pin.sdist_size and (chunk := body.read(1 << 20)):
                digest.update(chunk)
                size += len(chunk)
                with _disk(cache):
                    out.write(chunk)
        if digest.hexdigest() != pin.sdist_sha256:
            raise ForkError(
                f"the {pin.sdist_name} in the cache file is not the release",
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {pin.sdist_sha256}",
                fix="export it again: kunlunfork cache export FILE",
            )
        with held(final.with_name(f"{final.name}.lock")), _disk(cache):
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return final
