"""Tar archives read from front to back: ustar, pax and GNU's long names.

`tarfile` takes as long to read an sdist's headers as zlib takes to inflate it, takes a damaged header for the end, and
does not look at what follows the end, so that no check sum of gzip is ever compared. Here both are errors.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK = 512

REGULAR = frozenset((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE))
FOLDER = tarfile.DIRTYPE
SYMLINK = tarfile.SYMTYPE

# Names and comments; the tail fills a record up. Whoever has more there does not have an archive of source code.
_MAX_EXTRA = 1 << 20


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class TarMember:
    """One member. `kind` is the type byte, `mode` the permission bits, `link` where a symbolic link points."""

    name: bytes
    kind: bytes
    mode: int
    size: int
    link: bytes


def members(file: Readable) -> Iterator[TarMember]:
    """Yield the members of an archive. After a `REGULAR` one the caller reads its `size` bytes from `file`.

    Raises:
        tarfile.ReadError: no archive, a damaged or truncated one, or one with sparse files.
    """
    extra: dict[bytes, bytes] = {}
    while True:
        head = _exactly(file, BLOCK)
        if not head.rstrip(b"\0"):
            break
        if sum(head) - sum(head[148:156]) + 8 * 32 != _number(head[148:156]):
            raise tarfile.ReadError("a header's check sum is wrong")
        kind, size = head[156:157], _number(head[124:136])
        if kind in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            extra.update(_records(_body(file, size)))
        elif kind == tarfile.XGLTYPE:
            if _records(_body(file, size)):
                raise tarfile.ReadError("a global header that names files")
        elif kind == tarfile.GNUTYPE_LONGNAME:
            extra[b"path"] = _text(_body(file, size))
        elif kind == tarfile.GNUTYPE_LONGLINK:
            extra[b"linkpath"] = _text(_body(file, size))
        else:
            name = extra.get(b"path") or _name(head)
            if kind == tarfile.AREGTYPE and name.endswith(b"/"):
                kind = FOLDER
            if b"size" in extra:
                size = _decimal(extra[b"size"])
            yield TarMember(name, kind, _number(head[100:108]), size, extra.get(b"linkpath") or _text(head[157:257]))
            if kind in REGULAR:
                _exactly(file, -size % BLOCK)
            extra = {}
    if extra:
        raise tarfile.ReadError("it ends after the long name of a member")
    if len(file.read(_MAX_EXTRA)) == _MAX_EXTRA:
        raise tarfile.ReadError("something follows the archive")


def _exactly(file: Readable, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise tarfile.ReadError("it ends too early")
    return data


def _body(file: Readable, size: int) -> bytes:
    if size > _MAX_EXTRA:
        raise tarfile.ReadError(f"a header of {size} bytes")
    return _exactly(file, size + -size % BLOCK)[:size]


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _name(head: bytes) -> bytes:
    # Only POSIX's own format has a prefix there; GNU's has times.
    prefix = _text(head[345:500]) if head[257:263] == b"ustar\0" else b""
    return prefix + b"/" + _text(head[:100]) if prefix else _text(head[:100])


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU's, for what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    text = _text(field).strip(b" ")
    if not text.isdigit() and text:
        raise tarfile.ReadError("a header holds something that is no number")
    return int(text or b"0", 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise tarfile.ReadError("a header holds something that is no number")
    return int(text)


def _records(data: bytes) -> dict[bytes, bytes]:
    """What a pax header says of the name, the link and the size."""
    found = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        end = at + _decimal(data[at:space])
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if space < at or not equals or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError("a pax header is damaged")
        if key.startswith(b"GNU.sparse"):
            raise tarfile.ReadError("a sparse file")
        if key in (b"path", b"linkpath", b"size"):
            found[key] = value
        at = end
    return found
