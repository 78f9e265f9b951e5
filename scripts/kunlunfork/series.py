"""The ordered patches of a pin: `patches/<version>/series` and the files that it names."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch, parse_patch

SERIES = "series"
SUFFIX = ".patch"
# Bytes: no file system of today takes more.
_LONGEST = 255


@dataclass(frozen=True)
class Name:
    """One name in a series; `line` is 1-based."""

    name: str
    line: int


@dataclass(frozen=True)
class Problem:
    """What is wrong with one line of a series; `line` is None for the whole file."""

    line: int | None
    message: str
    fix: str

    def error(self, file: Path) -> ForkError:
        where = f"{file}, line {self.line}" if self.line else str(file)
        return ForkError(f"{where}: {self.message}", fix=self.fix)


def _fault(folder: Path, name: str) -> tuple[str, str] | None:
    """What is wrong with a name, and what mends it."""
    if "/" in name or "\\" in name or name.startswith(".") or not name.isprintable():
        return (
            f"{name!r} is not the name of a file in this folder",
            "use a plain name such as worker-hook.patch",
        )
    if not name.endswith(SUFFIX):
        return f"{name!r} does not end with {SUFFIX} (options such as -p0 are not known here)", (
            f"one name a line, ending with {SUFFIX}"
        )
    file = folder / name
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return f"{name!r} is not there", "restore the file from git, or delete the line"
    except OSError as e:
        return f"{name!r} cannot be read: {e.strerror}", "mend that"
    if not stat.S_ISREG(mode):
        return f"{name!r} is not a regular file", "put the patch itself there"
    return None


def is_plain(name: str) -> bool:
    """Whether a patch may be called so."""
    plain = name.endswith(SUFFIX) and "/" not in name and "\\" not in name and name[:1] != "." and name.isprintable()
    return plain and len(name.encode("utf-8", "surrogateescape")) <= _LONGEST


def rewrite(raw: bytes, names: Iterable[str]) -> bytes:
    """A series with these names in this order; the comments above a name stay with it, those of a name that goes too.

    Args:
        raw: the series as it is, which `scan` finds nothing wrong with.
    """
    above: dict[str, list[bytes]] = {}
    comments: list[bytes] = []
    for line in raw.split(b"\n"):
        text = line.decode("utf-8").strip()
        if text and not text.startswith("#"):
            above[text], comments = comments, []
        else:
            comments.append(line)
    end = comments[:-1]  # the empty string after the last newline
    lines = [line for name in names for line in (*above.get(name, []), name.encode("utf-8"))]
    return b"".join(line + b"\n" for line in [*lines, *end])


def scan(folder: Path) -> tuple[tuple[Name, ...], tuple[Problem, ...]]:
    """The names of `folder/series` that can be read, in order, and everything that is wrong with it."""
    file = folder / SERIES
    try:
        raw = file.read_bytes() if stat.S_ISREG(file.lstat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return (), (Problem(None, "the series is missing", "restore it from git; an empty one is valid"),)
    except OSError as e:
        return (), (Problem(None, f"it cannot be read: {e.strerror}", "mend that"),)
    if raw is None:
        return (), (Problem(None, "it is not a regular file", "restore it from git"),)
    names: list[Name] = []
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        try:
            name = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            problems.append(Problem(number, "not UTF-8", "write the name in UTF-8"))
            continue
        if not name or name.startswith("#"):
            continue
        if name in seen:
            fix = f"delete this line or line {seen[name]}"
            problems.append(Problem(number, f"{name!r} is there for the second time", fix))
            continue
        seen[name] = number
        fault = _fault(folder, name)
        if fault is None:
            names.append(Name(name, number))
        else:
            problems.append(Problem(number, *fault))
    return tuple(names), tuple(problems)


def load_series(folder: Path) -> tuple[Patch, ...]:
    """The patches of `folder` (patches/<version>), in the order of its series; an empty series is valid.

    Raises:
        ForkError: no series, a name that is twice there, missing, outside the folder or not UTF-8, or a patch
            that cannot be understood.
    """
    names, problems = scan(folder)
    if problems:
        raise problems[0].error(folder / SERIES)
    return tuple(parse_patch(name.name, read_patch(folder, name.name)) for name in names)


def read_patch(folder: Path, name: str) -> bytes:
    """The bytes of one patch (raises `ForkError`)."""
    try:
        return (folder / name).read_bytes()
    except OSError as e:
        raise ForkError(f"{folder / name} cannot be read", found=e.strerror or str(e)) from e


def series_hash(patches: Iterable[Patch]) -> str:
    """SHA-256, as hex, over each patch's name and the SHA-256 of its bytes, in order."""
    digest = sha256()
    for patch in patches:
        digest.update(patch.name.encode("utf-8") + b"\0" + patch.sha256.encode("ascii") + b"\n")
    return digest.hexdigest()
