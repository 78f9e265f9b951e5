"""What is inside an sdist or a wheel, read as a stream and trusted in nothing."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK
from kunlunfork.sources import tarstream
from kunlunfork.sources.members import Checked, Member

# Far above any vLLM release (0.1 GB in an sdist, 0.6 GB in a CUDA wheel), far below what fills a disk.
MAX_BYTES = 4 << 30
MAX_FILE = 1 << 30
MAX_FILES = 200_000

# The same with the size in place of the bytes, and how to read them once the size was looked at.
_Found = tuple[bytes, int, int, Callable[[], bytes]]
DAMAGED = (
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
    checked = Checked(archive.name, "an archive")
    total = 0
    try:
        for path, mode, size, body in read(archive):
            checked.path(path)
            total += size
            if size > MAX_FILE or total > MAX_BYTES or checked.count > MAX_FILES:
                raise _hostile(archive, f"it unpacks to more than {MAX_BYTES >> 30} GiB or {MAX_FILES} files")
            data = body()
            if len(data) != size:
                raise _hostile(archive, f"{paths.show(path)} has another length than announced")
            checked.data(path, mode, data)
            yield path, mode, data
    except DAMAGED as e:
        raise ForkError(
            f"{archive} is damaged",
            found=str(e) or type(e).__name__,
            expected="a whole .tar.gz or .whl",
            fix="get it again",
        ) from e
    except OSError as e:
        raise ForkError(f"{archive} cannot be read", found=e.strerror or str(e)) from e
    checked.end()


def _hostile(archive: Path, found: str) -> ForkError:
    return ForkError(f"{archive.name} is not an archive of vLLM", found=found, fix="get it again from where it is made")


def _sdist(archive: Path) -> Iterator[_Found]:
    with gzip.open(archive) as file:
        top: bytes | None = None
        for member in tarstream.members(file):
            first, _, path = member.name.rstrip(b"/").removeprefix(b"./").partition(b"/")
            folder = member.kind == tarstream.FOLDER
            if top is None:
                top = first
            if first != top or (not path and not folder):
                raise _hostile(archive, f"{paths.show(member.name)} lies beside the top folder {paths.show(top)}")
            if folder:
                continue
            if member.kind == tarstream.SYMLINK:
                yield path, SYMLINK, len(member.link), partial(bytes, member.link)
            elif member.kind in tarstream.REGULAR:
                mode = EXECUTABLE if member.mode & 0o100 else REGULAR
                yield path, mode, member.size, partial(file.read, member.size)
            else:
                raise _hostile(archive, f"{paths.show(member.name)} is a link to another member or a device")


def _wheel(archive: Path) -> Iterator[_Found]:
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
                    partial(body.read, member.file_size + 1),
                )
