"""RECORD, the list of files of an installed distribution: one `path,hash,size` line per file.

Edited line by line on bytes, so that what the fork did not touch stays as the installer wrote it. Installers
differ: pip ends lines with CRLF on every system, wheels mostly with LF, and a name with a comma is quoted.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork import paths
from kunlunfork.errors import ForkError

# The algorithms that the packaging specification allows here.
_ALGORITHMS = {b"sha256", b"sha384", b"sha512"}

_FIELD = re.compile(rb'"(?P<quoted>[^"]*(?:""[^"]*)*)"|(?P<plain>(?!")(?:[^,\r\n]|\r(?!\n))*)')
_LINE_END = re.compile(rb"\r?\n|\Z")


@dataclass(frozen=True)
class Problem:
    """A file that its RECORD does not describe as it is."""

    path: bytes
    found: str
    expected: str


@dataclass(frozen=True)
class _Line:
    """One line as written: its bytes, its line ending (empty at the end of the file), its unquoted fields."""

    raw: bytes
    end: bytes
    fields: tuple[bytes, ...]

    @property
    def path(self) -> bytes:
        return self.fields[0]

    @property
    def hash(self) -> bytes:
        return self.fields[1] if len(self.fields) > 1 else b""

    @property
    def size(self) -> bytes:
        return self.fields[2] if len(self.fields) > 2 else b""


def _damaged(data: bytes, position: int) -> ForkError:
    number = data.count(b"\n", 0, position) + 1
    return ForkError(
        f"RECORD is damaged at line {number}",
        found=paths.show(data[position : position + 60]),
        expected="path,hash,size with paired quotes",
        fix="install the distribution again (pip install --force-reinstall --no-deps)",
    )


def _lines(data: bytes) -> Iterator[_Line]:
    position = 0
    while position < len(data):
        newline = data.find(b"\n", position)
        stop = len(data) if newline < 0 else newline
        raw = data[position:stop]
        if b'"' not in raw:
            end = b"" if newline < 0 else b"\n"
            if end and raw.endswith(b"\r"):
                raw, end = raw[:-1], b"\r\n"
            yield _Line(raw, end, tuple(raw.split(b",")))
            position = stop + 1
            continue
        # A quoted field may hold commas and even line ends, so this line is read field by field.
        start, fields = position, []
        while True:
            field = _FIELD.match(data, position)
            if field is None:
                raise _damaged(data, start)
            quoted = field["quoted"]
            fields.append(field["plain"] if quoted is None else quoted.replace(b'""', b'"'))
            position = field.end()
            if data[position : position + 1] != b",":
                break
            position += 1
        ending = _LINE_END.match(data, position)
        if ending is None:
            raise _damaged(data, start)
        yield _Line(data[start:position], ending[0], tuple(fields))
        position = ending.end()


def read_record(data: bytes) -> dict[bytes, tuple[bytes, bytes]]:
    """The files that a RECORD lists.

    Returns:
        path -> (hash such as `sha256=...`, size in decimal digits), each empty where the line has none; paths
        are relative to the folder that holds the dist-info, as written. Of duplicate lines the last counts.

    Raises:
        ForkError: quotes that do not pair.
    """
    return {line.path: (line.hash, line.size) for line in _lines(data) if line.path}


def digest(content: bytes) -> tuple[bytes, bytes]:
    """The (hash, size) fields of a file with these bytes."""
    return b"sha256=" + _encode(hashlib.sha256(content).digest()), b"%d" % len(content)


def rewrite_record(data: bytes, *, written: Mapping[bytes, bytes | None], removed: Collection[bytes] = ()) -> bytes:
    """RECORD after files were written and removed.

    A path that is listed keeps its place, one that is not is added at the end, in order of its name. Lines
    that need no change stay byte-identical, those of paths outside the tree and of RECORD itself included.
    Doing the same twice gives the same bytes, and removing what was added gives the old ones back.

    Args:
        data: the present RECORD.
        written: path -> the file's new bytes, or None for a line without hash (of a file that holds the hash
            of RECORD itself, or changes later).
        removed: paths that are gone. One that is not listed is no error.

    Raises:
        ForkError: quotes that do not pair.
        ValueError: a path that is both written and removed.
    """
    if both := set(removed) & written.keys():
        raise ValueError(f"both written and removed: {sorted(both)!r}")
    before = list(_lines(data))
    end = next((line.end for line in before if line.end), b"\n")
    after = []
    for line in before:
        if line.path in removed:
            continue
        if line.path in written and not _describes(line, written[line.path]):
            line = replace(line, raw=_format(line.path, written[line.path]))
        after.append(line)
    listed = {line.path for line in before}
    after += [_Line(_format(path, written[path]), end, ()) for path in sorted(written.keys() - listed)]
    # Whether the file ends with a line end is a matter of the file, not of the line that happens to be last.
    ended = not before or before[-1].end != b""
    text = b"".join(line.raw + (line.end or end) for line in after[:-1])
    return text + b"".join(line.raw + ((line.end or end) if ended else b"") for line in after[-1:])


def verify_record(root: Path, data: bytes, only: Iterable[bytes] | None = None) -> list[Problem]:
    """Compare files with what RECORD says of them.

    Args:
        root: the folder that holds the dist-info.
        data: the bytes of RECORD.
        only: the paths to look at, which must all be listed; None for every line with a hash inside `root`.

    Raises:
        ForkError: quotes that do not pair, or a file that cannot be read.
    """
    lines: dict[bytes, list[_Line]] = {}
    for line in _lines(data):
        lines.setdefault(line.path, []).append(line)
    if only is None:
        only = [path for path, same in lines.items() if _inside(path) and any(line.hash for line in same)]
    problems = []
    for path in only:
        if path not in lines:
            problems.append(Problem(path, "not listed", "a line in RECORD"))
        # Duplicates that agree are one finding.
        problems += dict.fromkeys(p for line in lines.get(path, ()) if (p := _check(root, line)) is not None)
    return problems


def _inside(path: bytes) -> bool:
    return bool(path) and not path.startswith(b"/") and b".." not in path.split(b"/")


def _encode(digest_bytes: bytes) -> bytes:
    return urlsafe_b64encode(digest_bytes).rstrip(b"=")


def _format(path: bytes, content: bytes | None) -> bytes:
    if any(c in path for c in b',"\r\n'):
        path = b'"' + path.replace(b'"', b'""') + b'"'
    return b",".join((path, *(digest(content) if content is not None else (b"", b""))))


def _describes(line: _Line, content: bytes | None) -> bool:
    if len(line.fields) != 3:
        return False
    if content is None:
        return not line.hash and not line.size
    algorithm, _, value = line.hash.partition(b"=")
    if algorithm not in _ALGORITHMS or line.size != b"%d" % len(content):
        return False
    return value.rstrip(b"=") == _encode(hashlib.new(algorithm.decode(), content).digest())


def _check(root: Path, line: _Line) -> Problem | None:
    full = paths.on_disk(root, line.path)
    algorithm, _, value = line.hash.partition(b"=")
    if line.hash and algorithm not in _ALGORITHMS:
        return Problem(line.path, f"hash {paths.show(line.hash)}", "sha256, sha384 or sha512")
    try:
        if not full.is_file():
            return Problem(line.path, "not a file" if full.exists() else "missing", "a regular file")
        if not line.hash:
            return None
        size = full.stat().st_size
        if line.size and line.size != b"%d" % size:
            return Problem(line.path, f"{size} bytes", f"{paths.show(line.size)} bytes")
        hasher, size = hashlib.new(algorithm.decode()), 0
        with full.open("rb") as f:
            while chunk := f.read(1 << 20):
                hasher.update(chunk)
                size += len(chunk)
    except OSError as e:
        raise ForkError(f"{full} cannot be read", found=e.strerror or str(e)) from e
    if line.size and line.size != b"%d" % size:
        return Problem(line.path, f"{size} bytes", f"{paths.show(line.size)} bytes")
    actual = _encode(hasher.digest())
    if actual != value.rstrip(b"="):
        return Problem(line.path, f"{algorithm.decode()}={actual.decode()}", paths.show(line.hash))
    return None
