"""What is inside an sdist or a wheel, read as a stream and trusted in nothing."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK

# Far above any vLLM release (0.1 GB in an sdist, 0.6 GB in a CUDA wheel), far below what fills a disk.
MAX_BYTES = 4 << 30
MAX_FILE = 1 << 30
MAX_FILES = 200_000

Member = tuple[bytes, int, bytes]
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    RuntimeError,
    ValueError,
)


def members(archive: Path) -> Iterator[Member]:
    """Yield (path, mode, bytes) of each file of an sdist (`.tar.gz`, its top folder stripped) or a wheel.

    Raises:
        ForkError: not such a file, damaged, or hostile: paths or links that leave the tree, devices, hard links,
            two members of one name, a file where a folder is, more than `MAX_BYTES` or `MAX_FILES`.
    """
    read = _wheel if archive.suffix in (".whl", ".zip") else _sdist
    seen: set[bytes] = set()
    folders: set[bytes] = set()
    total = 0
    try:
        for path, mode, size, body in read(archive):
            paths.check(path, where=archive.name)
            parts = path.split(b"/")
            folders.update(b"/".join(parts[:i]) for i in range(1, len(parts)))
            if path in seen:
                raise _hostile(archive, f"{paths.show(path)} is in it twice")
            seen.add(path)
            total += size
            if size > MAX_FILE or total > MAX_BYTES or len(seen) > MAX_FILES:
                raise _hostile(archive, f"it unpacks to more than {MAX_BYTES >> 30} GiB or {MAX_FILES} files")
            data = body.read(size + 1) if not isinstance(body, bytes) else body
            if len(data) != size:
                raise _hostile(archive, f"{paths.show(path)} has another length than announced")
            if mode == SYMLINK:
                paths.check_symlink(path, data, where=archive.name)
            yield path, mode, data
    except _DAMAGED as e:
        raise ForkError(
            f"{archive} is damaged",
            found=str(e) or type(e).__name__,
            expected="a whole .tar.gz or .whl",
            fix="get it again",
        ) from e
    except OSError as e:
        raise ForkError(f"{archive} cannot be read", found=e.strerror or str(e)) from e
    clash = next((path for path in seen if path in folders), None)
    if clash is not None:
        raise _hostile(archive, f"{paths.show(clash)} is both a file and a folder")


def _hostile(archive: Path, found: str) -> ForkError:
    return ForkError(f"{archive.name} is not an archive of vLLM", found=found, fix="get it again from where it is made")


def _sdist(archive: Path) -> Iterator[tuple[bytes, int, int, IO[bytes] | bytes]]:
    # "r:gz", not "r|gz": the stream mode of tarfile copies its buffer at each read, six times slower here.
    with tarfile.open(archive, "r:gz", encoding="utf-8", errors="surrogateescape") as tar:
        top: bytes | None = None
        for member in tar:
            raw = os.fsencode(member.name)
            first, _, path = raw.rstrip(b"/").removeprefix(b"./").partition(b"/")
            if top is None:
                top = first
            if first != top or (not path and not member.isdir()):
                raise _hostile(archive, f"{paths.show(raw)} lies beside the top folder {paths.show(top)}")
            if member.isdir():
                continue
            if member.issym():
                target = os.fsencode(member.linkname)
                yield path, SYMLINK, len(target), target
            elif member.isreg():
                body = tar.extractfile(member)
                assert body is not None
                yield path, EXECUTABLE if member.mode & 0o100 else REGULAR, member.size, body
            else:
                raise _hostile(archive, f"{paths.show(raw)} is a link to another member or a device")


def _wheel(archive: Path) -> Iterator[tuple[bytes, int, int, IO[bytes] | bytes]]:
    with zipfile.ZipFile(archive) as wheel:
        for member in wheel.infolist():
            if member.is_dir():
                continue
            unix = member.external_attr >> 16
            if unix and not stat.S_ISREG(unix) and stat.S_IFMT(unix):
                raise _hostile(archive, f"{paths.show(os.fsencode(member.filename))} is not a regular file")
            with wheel.open(member) as body:
                yield (
                    os.fsencode(member.filename),
                    EXECUTABLE if unix & 0o100 else REGULAR,
                    member.file_size,
                    body,
                )
