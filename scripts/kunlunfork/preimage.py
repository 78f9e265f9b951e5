"""What a series expects to find, and what it leaves, file by file and in memory: for checks, not for applying."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kunlunfork import paths
from kunlunfork.hunks import Hunk
from kunlunfork.patchfile import FilePatch, Patch
from kunlunfork.paths import Entry, show

Upstream = Callable[[bytes], tuple[Entry, bytes] | None]
# What a renamed file is of which nothing was found.
UNKNOWN = Entry(0, "")


@dataclass(frozen=True)
class File:
    """A file of the tree; `data` is None where a binary patch or an error made it unknown."""

    entry: Entry
    data: bytes | None


@dataclass(frozen=True)
class Mismatch:
    """A fault of one section: `line` of the patch file (None for its head), what is there, what the patch says."""

    code: str
    line: int | None
    message: str


@dataclass(frozen=True)
class Step:
    """One section of one patch on the tree that the patches before it leave. `before` is None for an added file."""

    file: FilePatch
    before: File | None
    mismatches: tuple[Mismatch, ...]


def _cut(data: bytes) -> list[bytes]:
    """Lines with their newlines."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _side(hunk: Hunk, dropped: bytes) -> list[bytes]:
    """The lines of one side of a hunk, with their newlines."""
    lines: list[bytes] = []
    kept = False
    for line in hunk.lines:
        if line[:1] == b"\\":
            if kept:
                lines[-1] = lines[-1][:-1]
        else:
            kept = line[:1] != dropped
            if kept:
                lines.append(line[1:] + b"\n")
    return lines


def apply_hunks(before: bytes, hunks: Iterable[Hunk]) -> bytes | int:
    """The file after `hunks`, each at exactly the lines it names; or the line of the first hunk that does not fit."""
    old = _cut(before)
    new: list[bytes] = []
    at = 0
    for hunk in hunks:
        start, end = hunk.old_before, hunk.old_before + hunk.old_count
        if end > len(old) or old[start:end] != _side(hunk, b"+"):
            return hunk.line
        new += old[at:start]
        new += _side(hunk, b"-")
        at = end
    return b"".join([*new, *old[at:]])


def _same(blob: str | None, entry: Entry) -> bool:
    """Whether a blob id, perhaps a short one, can be that of `entry`."""
    return blob is None or entry.blob == UNKNOWN.blob or entry.blob.startswith(blob)


class Tree:
    """Upstream's files with patches on them."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._changed: dict[bytes, File | None] = {}

    def get(self, path: bytes) -> File | None:
        if path in self._changed:
            return self._changed[path]
        found = self._upstream(path)
        return None if found is None else File(*found)

    def apply(self, patch: Patch) -> tuple[Step, ...]:
        """Compare each section with the tree and put its result there, also where it does not fit."""
        # A section of git's sees the tree as it was before the patch (two files may change places); a second
        # section of the same file sees the first one's result.
        start = {path: self.get(path) for f in patch.files for path in (f.old_path, f.new_path) if path}
        gone = {f.old_path for f in patch.files if f.kind in ("delete", "rename")}
        made: set[bytes] = set()
        steps = []
        for file in patch.files:
            steps.append(self._section(file, start, gone, made))
            made.update([file.new_path] if file.new_path is not None else [])
        return tuple(steps)

    def _section(
        self, file: FilePatch, start: dict[bytes, File | None], gone: set[bytes | None], made: set[bytes]
    ) -> Step:
        problems: list[Mismatch] = []
        before = self._before(file, start)
        if file.old_path is not None:
            problems += _compare(file, file.old_path, before)
        if file.kind in ("add", "rename", "copy") and file.new_path is not None:
            there = self.get(file.new_path)
            if there is not None and not (file.new_path in gone and there == start[file.new_path]):
                message = f"{show(file.new_path)} is already there, and this patch makes it"
                problems.append(Mismatch("preimage", None, message))
        fits = not problems
        after, fault = _after(file, before if fits else None)
        if fault is not None:
            problems.append(fault)
        if file.kind in ("delete", "rename") and file.old_path is not None:
            # Another file may have taken the place in the same patch.
            taken = file.old_path in made and before is start[file.old_path]
            self._changed[file.old_path] = self.get(file.old_path) if taken else None
        if file.new_path is not None:
            self._changed[file.new_path] = after
        return Step(file, before if fits else None, tuple(problems))

    def _before(self, file: FilePatch, start: dict[bytes, File | None]) -> File | None:
        if file.old_path is None:
            return None
        first, now = start[file.old_path], self.get(file.old_path)
        if first is None or (now is not None and not _same(file.old_blob, first.entry)):
            return now
        return first


def _compare(file: FilePatch, path: bytes, before: File | None) -> list[Mismatch]:
    if before is None:
        return [Mismatch("preimage", None, f"{show(path)} is not there, and this patch changes it")]
    entry = before.entry
    if not _same(file.old_blob, entry):
        message = f"{show(path)} is made from blob {file.old_blob}, but it has blob {entry.blob}"
        return [Mismatch("preimage", None, message)]
    if file.old_mode not in (None, entry.mode) and entry.mode != UNKNOWN.mode:
        message = f"{show(path)} is made from mode {file.old_mode or 0:o}, but it has mode {entry.mode:o}"
        return [Mismatch("preimage", None, message)]
    return []


def _content(file: FilePatch, before: File | None) -> tuple[bytes | None, Mismatch | None]:
    """The bytes after a section, None where they are not known."""
    start = b"" if file.kind == "add" else None if before is None else before.data
    if file.binary or start is None:
        return None, None
    result = apply_hunks(start, file.hunks)
    if isinstance(result, bytes):
        return result, None
    name = show(file.old_path or file.new_path or b"")
    return None, Mismatch("hunk", result, f"the hunk does not fit {name} at the lines that it names")


def _after(file: FilePatch, before: File | None) -> tuple[File | None, Mismatch | None]:
    """The file that a section leaves, as far as it is known, and what is wrong with it."""
    data, fault = _content(file, before)
    if file.new_path is None:
        if data:
            line = file.hunks[0].line if file.hunks else None
            fault = Mismatch("hunk", line, f"{show(file.old_path or b'')} is deleted, but not all of it is named")
        return None, fault
    mode = file.new_mode if file.new_mode is not None else before.entry.mode if before else UNKNOWN.mode
    made = None if data is None else paths.blob_id(data)
    if made is not None and not made.startswith(file.new_blob or made):
        message = f"{show(file.new_path)} becomes blob {made}, but the patch says {file.new_blob}"
        fault = Mismatch("postimage", None, message)
    blob = file.new_blob or made or (before.entry.blob if before else UNKNOWN.blob)
    return File(Entry(mode, blob), data), fault
