"""Paths inside a tree: bytes, relative, '/' between components, as git has them."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import NoReturn

from kunlunfork.errors import ForkError

REGULAR = 0o100644
EXECUTABLE = 0o100755
SYMLINK = 0o120000
MODES = (REGULAR, EXECUTABLE, SYMLINK)

# More than any file of vLLM, a lock or a journal has. Beyond it a file (sparse, say) is not read, only called changed.
MAX_BYTES = 256 << 20

# Names that would reach a repository's innards, or our own state, whatever the case of the file system.
_FORBIDDEN = (b".git", b".kunlunfork")


@dataclass(frozen=True)
class Entry:
    """One file of a tree: its git mode and the id of its blob (40 hex digits)."""

    mode: int
    blob: str


def blob_id(data: bytes) -> str:
    """Git's object id of a blob with these bytes."""
    digest = sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def show(path: bytes) -> str:
    """A path for people: printable, never raising, control characters escaped."""
    text = os.fsdecode(path)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def check(path: bytes, *, where: str) -> bytes:
    """Return `path` if it stays inside its tree.

    Raises:
        ForkError: absolute, empty, with `.`/`..`/empty components, a NUL, or into `.git` or `.kunlunfork`.
    """
    parts = path.split(b"/")
    bad = (
        not path
        or b"\0" in path
        or any(part in (b"", b".", b"..") for part in parts)
        or any(part.lower() in _FORBIDDEN for part in parts)
    )
    if bad:
        raise ForkError(
            f"{where} names a path that leaves its tree or reaches into its records",
            found=show(path) or "(an empty path)",
            expected="a relative path inside the tree",
            fix="do not use this file; get it again from where it is made",
        )
    return path


def check_symlink(path: bytes, target: bytes, *, where: str) -> None:
    """Refuse a symbolic link that is absolute or climbs out of its tree (raises `ForkError`)."""
    depth = path.count(b"/")
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
        elif part not in (b"", b"."):
            depth += 1
        if depth < 0:
            break
    if not target or target.startswith(b"/") or depth < 0 or b"\0" in target:
        raise ForkError(
            f"{where} has a symbolic link that leaves its tree",
            found=f"{show(path)} -> {show(target)}",
            expected="a relative link to a file of the same tree",
            fix="do not use this file; get it again from where it is made",
        )


def to_text(path: bytes) -> str:
    """A path as JSON holds it, whatever the locale: UTF-8, other bytes as lone surrogates."""
    return path.decode("utf-8", "surrogateescape")


def from_text(text: str) -> bytes:
    """The inverse of `to_text` (raises `UnicodeEncodeError`, a `ValueError`, for text that no path gives)."""
    return text.encode("utf-8", "surrogateescape")


def on_disk(root: Path, path: bytes) -> Path:
    return root / os.fsdecode(path)


def from_disk(path: Path) -> bytes:
    """The tree path of a relative `Path`."""
    return os.fsencode(path.as_posix())


def read_plain(file: Path) -> bytes:
    """The bytes of a regular file of ours. No link is followed, and nothing is read that does not end.

    Raises:
        OSError: it is not there, or may not be read.
        ForkError: it is no regular file, or too large.
    """
    st = file.lstat()
    if not stat.S_ISREG(st.st_mode):
        raise _in_the_way(file, st.st_mode, "a regular file", _RESTORE)
    if st.st_size > MAX_BYTES:
        raise _too_large(file, st.st_size, _RESTORE)
    return file.read_bytes()


def read_entry(root: Path, path: bytes) -> tuple[Entry, bytes] | None:
    """What lies at `path` below `root`, without following a link.

    Returns:
        (entry, bytes), or None where nothing is there.

    Raises:
        ForkError: something that is neither a regular file nor a symbolic link, too large, or that cannot be read.
    """
    full = on_disk(root, path)
    try:
        st = full.lstat()
        if stat.S_ISREG(st.st_mode):
            if st.st_size > MAX_BYTES:
                raise _too_large(full, st.st_size, _away(full))
            data = full.read_bytes()
            return Entry(EXECUTABLE if st.st_mode & 0o100 else REGULAR, blob_id(data)), data
        if stat.S_ISLNK(st.st_mode):
            data = os.fsencode(full.readlink())
            return Entry(SYMLINK, blob_id(data)), data
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise ForkError(f"{full} cannot be read", found=e.strerror or str(e)) from e
    raise _in_the_way(full, st.st_mode, "a regular file, a symbolic link, or nothing", _away(full))


def present(root: Path, path: bytes) -> Entry | None:
    """What lies at `path`, to be compared with an entry that should: a folder, a pipe or a giant equals none.

    Raises:
        ForkError: it cannot be read.
    """
    try:
        st = on_disk(root, path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise ForkError(f"{on_disk(root, path)} cannot be read", found=e.strerror or str(e)) from e
    if not (stat.S_ISREG(st.st_mode) or stat.S_ISLNK(st.st_mode)) or st.st_size > MAX_BYTES:
        return Entry(stat.S_IFMT(st.st_mode), "")
    found = read_entry(root, path)
    return found[0] if found else None


def linked_folders(root: Path, files: Iterable[bytes]) -> list[bytes]:
    """Folders above these files that are symbolic links: what lies there lies elsewhere."""
    folders = {p for path in files for p in parents(path)}
    return sorted(f for f in folders if os.path.islink(on_disk(root, f)))  # noqa: PTH114  (never raises)


def walk(root: Path, top: str) -> Iterator[bytes]:
    """Every file and link below the folder `top` of a tree, but for Python's bytecode.

    Raises:
        ForkError: a folder cannot be read.
    """

    def fail(e: OSError) -> NoReturn:
        raise ForkError(f"{os.fsdecode(e.filename)} cannot be read", found=e.strerror or str(e)) from e

    start = os.fsencode(root / top)
    for folder, folders, names in os.walk(start, onerror=fail):
        folders[:] = sorted(f for f in folders if f != b"__pycache__")
        links = [f for f in folders if os.path.islink(os.path.join(folder, f))]  # noqa: PTH114, PTH118  (bytes)
        for name in sorted([*names, *links]):
            yield b"%s%s/%s" % (os.fsencode(top), folder[len(start) :], name)


def parents(path: bytes) -> list[bytes]:
    """The folders above a path, outer ones first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:i]) for i in range(1, len(parts))]


_RESTORE = "restore it, or take a fresh tree of a release that is listed by: kunlunfork pins"


def _away(full: Path) -> str:
    return f"mv -n {shlex.quote(str(full))} {shlex.quote(f'{full}.mine')}"


def _in_the_way(full: Path, mode: int, expected: str, fix: str) -> ForkError:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link"}
    found = kinds.get(stat.S_IFMT(mode), "a device, socket or pipe")
    return ForkError(f"{full} is in the way", found=found, expected=expected, fix=fix)


def _too_large(full: Path, size: int, fix: str) -> ForkError:
    return ForkError(f"{full} is too large", found=f"{size} bytes", expected=f"at most {MAX_BYTES} bytes", fix=fix)
