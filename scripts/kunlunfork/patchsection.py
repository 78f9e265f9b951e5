"""One `diff --git` section of a patch: names, modes, blob ids, and what follows them."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from typing import Literal

from kunlunfork import binarypatch, paths
from kunlunfork.errors import ForkError
from kunlunfork.hunks import Hunk, Hunks
from kunlunfork.patchextended import Extended, check_path, check_side, mode_of, names
from kunlunfork.patchlines import REMAKE, Lines

Kind = Literal["modify", "add", "delete", "rename", "copy", "mode"]

_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?")
_PERCENT = re.compile(rb"(\d{1,3})%")
_BINARY = re.compile(rb"(literal|delta) (\d{1,12})")
_KINDS: tuple[tuple[bytes, Kind], ...] = (
    (b"new file mode ", "add"),
    (b"deleted file mode ", "delete"),
    (b"rename from ", "rename"),
    (b"copy from ", "copy"),
)
_EMPTY_BLOB = paths.blob_id(b"")


@dataclass(frozen=True)
class FilePatch:
    """What one section does to one file.

    Paths and modes are None on the side where the file is not there. A pure rename or copy names no mode and
    no blob (None on both sides), a pure mode change no blob. Blob ids are as written (lint refuses short
    ones).
    A copy leaves its old path as it is. `start` and `end` are byte offsets in the patch file.
    """

    kind: Kind
    old_path: bytes | None
    new_path: bytes | None
    old_mode: int | None
    new_mode: int | None
    old_blob: str | None
    new_blob: str | None
    hunks: tuple[Hunk, ...]
    binary: bool
    start: int
    end: int


def _id(digits: bytes) -> str | None:
    return digits.decode("ascii") if digits.strip(b"0") else None


def _kind(extended: Extended) -> Kind:
    found = [kind for key, kind in _KINDS if key in extended]
    old_mode, new_mode = b"old mode " in extended, b"new mode " in extended
    if len(found) > 1 or old_mode != new_mode or (old_mode and ("add" in found or "delete" in found)):
        raise extended.lines.error(
            extended.start, "section", "header lines that contradict each other",
            found=", ".join(extended.lines.found(i) for i in range(extended.start + 1, extended.end)),
            expected="one of: new file, deleted file, rename, copy, change",
        )  # fmt: skip
    if found:
        return found[0]
    return "modify" if b"index " in extended else "mode"


def _modes(extended: Extended, kind: Kind, index_mode: int | None) -> tuple[int | None, int | None]:
    lines = extended.lines
    if kind == "add":
        old, new = None, extended.mode(b"new file mode ")
    elif kind == "delete":
        old, new = extended.mode(b"deleted file mode "), None
    elif b"old mode " in extended:
        old, new = extended.mode(b"old mode "), extended.mode(b"new mode ")
    else:
        return index_mode, index_mode
    if index_mode is not None:
        raise lines.error(extended.at(b"index "), "mode", "a second mode for the file", expected="index OLD..NEW")
    if old is not None and new is not None and stat.S_IFMT(old) != stat.S_IFMT(new):
        raise lines.error(
            extended.at(b"new mode "), "mode", "a file that turns into a link, or a link into a file",
            expected="one section that deletes and one that adds",
        )  # fmt: skip
    return old, new


def _blobs(extended: Extended, kind: Kind) -> tuple[str | None, str | None, int | None]:
    lines = extended.lines
    value = extended.get(b"index ")
    if value is None:
        return None, None, None
    at = extended.at(b"index ")
    match = _INDEX.fullmatch(value)
    if match is None:
        raise lines.error(at, "index", "not an index line", expected="index OLD..NEW MODE")
    old, new = _id(match[1]), _id(match[2])
    if (old is None) != (kind == "add") or (new is None) != (kind == "delete"):
        raise lines.error(
            at, "index", f"blob ids that do not fit the section, which is of the kind '{kind}'",
            expected="zeros for the side where the file is not there, and only there",
        )  # fmt: skip
    return old, new, None if match[3] is None else mode_of(lines, at, match[3])


def _binary_half(lines: Lines, at: int) -> tuple[bytes, bytes, int]:
    match = _BINARY.fullmatch(lines[at]) if at < len(lines) else None
    if match is None:
        raise lines.error(at, "binary", "not the start of binary data", expected="literal SIZE or delta SIZE")
    start = end = at + 1
    while end < len(lines) and lines[end]:
        end += 1
    if end >= len(lines):
        raise lines.error(
            end, "truncated", "the file ends inside binary data", expected="an empty line",
            fix="get the whole patch file again",
        )  # fmt: skip
    try:
        data = binarypatch.unpack(lines.text[start:end], int(match[2]))
        if match[1] == b"delta":
            binarypatch.check_delta(data)
    except ValueError as e:
        raise lines.error(
            at, "binary", f"binary data that is not what it says: {e}", expected="data as git wrote it"
        ) from e
    return match[1], data, end + 1


def _check_link(lines: Lines, at: int, path: bytes, target: bytes) -> None:
    try:
        paths.check_symlink(path, target, where=f"{lines.name}, line {at + 1}")
    except ForkError as e:
        raise lines.error(at, "symlink", "a symbolic link that leaves its tree",
                          found=e.found, expected=e.expected, fix=e.fix) from e  # fmt: skip


def _link_target(lines: Lines, at: int, hunks: tuple[Hunk, ...]) -> bytes:
    """What a link points to after the hunks; they must hold all of it, or nobody has looked at the rest."""
    body = hunks[0].lines
    shown = [i for i, line in enumerate(body) if line[:1] in (b" ", b"+")]
    after = body[shown[-1] + 1 :] if shown else ()
    closed = bool(after) and after[0].startswith(b"\\")
    if len(hunks) > 1 or hunks[0].new_before or not closed:
        raise lines.error(
            at, "symlink", "the target of a symbolic link that is not given whole",
            expected=r"one hunk, with '\ No newline at end of file' after the target",
        )  # fmt: skip
    return b"\n".join(body[i][1:] for i in shown)


def read_section(lines: Lines, start: int) -> tuple[FilePatch, int]:
    """The section that starts at line `start`, and the line after it (raises `PatchError`)."""
    extended = Extended(lines, start)
    kind = _kind(extended)
    old, new = names(extended)
    for path in {old, new}:
        check_path(lines, start, path)
    if kind in ("rename", "copy") and old == new:
        raise lines.error(start, "names", f"a {kind} of a file to itself", expected="two names")
    for key in (b"similarity index ", b"dissimilarity index "):
        if not _PERCENT.fullmatch(extended.get(key) or b"0%"):
            raise lines.error(extended.at(key), "section", "not a percentage", expected=f"{key.decode()}NUMBER%")
    old_blob, new_blob, index_mode = _blobs(extended, kind)
    old_mode, new_mode = _modes(extended, kind, index_mode)

    at = extended.end
    hunks: tuple[Hunk, ...] = ()
    binary = False
    target: bytes | None = None
    if lines.starts(at, b"--- "):
        check_side(lines, at, b"--- ", b"/dev/null" if kind == "add" else b"a/" + old)
        check_side(lines, at + 1, b"+++ ", b"/dev/null" if kind == "delete" else b"b/" + new)
        hunks, at = Hunks(lines).read(at + 2)
        if not hunks:
            raise lines.error(at, "truncated", "a section without its hunks", expected="@@ -LINE,COUNT +LINE,COUNT @@")
        if new_mode == paths.SYMLINK:
            target = _link_target(lines, hunks[0].line - 1, hunks)
    elif lines.starts(at, b"GIT binary patch") and lines[at] == b"GIT binary patch":
        binary = True
        form, data, at = _binary_half(lines, at + 1)
        if lines.starts(at, b"literal ", b"delta "):
            at = _binary_half(lines, at)[2]
        if new_mode == paths.SYMLINK:
            if form == b"delta":
                raise lines.error(extended.end, "symlink", "the target of a symbolic link as a delta", expected="text")
            target = data
    elif lines.starts(at, b"Binary files "):
        raise lines.error(at, "binary", "a binary file without its data", expected="GIT binary patch")
    if target is not None:
        _check_link(lines, extended.end, new, target)
    file = FilePatch(
        kind=kind,
        old_path=None if kind == "add" else old,
        new_path=None if kind == "delete" else new,
        old_mode=old_mode,
        new_mode=new_mode,
        old_blob=old_blob,
        new_blob=new_blob,
        hunks=hunks,
        binary=binary,
        start=lines.offset(start),
        end=lines.offset(at),
    )
    _check_whole(extended, file)
    return file, at


def _check_whole(extended: Extended, file: FilePatch) -> None:
    """The content must be there where the header says that it changes, and only there."""
    lines, at = extended.lines, extended.end
    content = bool(file.hunks) or file.binary
    if content and b"index " not in extended:
        raise lines.error(
            at, "index", "no index line, so the file that it was made from is not known",
            expected="index OLD..NEW MODE", fix=REMAKE,
        )  # fmt: skip
    if content and file.old_mode is None and file.new_mode is None:
        raise lines.error(extended.at(b"index "), "mode", "no mode", expected="index OLD..NEW MODE")
    if not content:
        _check_bare(extended, file)
    if file.kind in ("add", "delete") and file.hunks:
        hunk = file.hunks[0]
        kept = (hunk.old_count, hunk.old_start) if file.kind == "add" else (hunk.new_count, hunk.new_start)
        if len(file.hunks) > 1 or kept != (0, 0):
            raise lines.error(
                hunk.line - 1, "section", f"hunks that do not {file.kind} a whole file",
                expected="@@ -0,0 +1,COUNT @@" if file.kind == "add" else "@@ -1,COUNT +0,0 @@",
            )  # fmt: skip


def _check_bare(extended: Extended, file: FilePatch) -> None:
    """A section without hunks: an empty file, a pure rename or copy, a mode; anything else was cut off."""
    lines, at = extended.lines, extended.end
    blob = file.new_blob if file.kind == "add" else file.old_blob
    if file.kind in ("add", "delete") and blob is not None and _EMPTY_BLOB.startswith(blob):
        return
    if file.kind in ("rename", "copy") and b"index " not in extended:
        if extended.get(b"similarity index ") in (b"100%", None):
            return
    elif file.kind == "mode" and b"old mode " in extended:
        return
    raise lines.error(
        at, "truncated", "a section that ends before its content",
        expected="hunks or a binary patch" if file.kind != "mode" else "index, mode, rename or copy lines",
        fix="get the whole patch file again, or " + REMAKE,
    )  # fmt: skip
