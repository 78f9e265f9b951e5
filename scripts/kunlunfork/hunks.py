"""The hunks of one file in a patch: their counts, places and lines must agree with each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kunlunfork.patchlines import REMAKE, Lines, PatchError

_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: (.*))?", re.DOTALL)
_BODY = (b" ", b"+", b"-", b"\\ ")
_MARKERS = (b"<<<<<<< ", b"=======", b">>>>>>> ", b"||||||| ")
_BY_HAND = "do not edit hunks by hand; edit a git tree, then " + REMAKE
_VERSION = re.compile(rb"\d+\.\d[\w.() -]*")


@dataclass(frozen=True)
class Hunk:
    """One hunk. Lines are numbered from 1, as in its header.

    `lines` keep their prefix byte and have no newline; `\\ No newline at end of file` is a line of its own.
    `section` is what git put after the second `@@`; `line` is where the `@@` stands in the patch file.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[bytes, ...]
    line: int

    @property
    def old_before(self) -> int:
        """How many lines of the old file come before the hunk."""
        return self.old_start - 1 if self.old_count else self.old_start

    @property
    def new_before(self) -> int:
        """How many lines of the new file come before the hunk."""
        return self.new_start - 1 if self.new_count else self.new_start


def is_signature(lines: Lines, at: int) -> bool:
    """Whether the rest of the file is the signature of a mail: `-- `, a version of git, empty lines."""
    return (
        lines.starts(at, b"-- ")
        and lines[at] == b"-- "
        and at + 1 < len(lines)
        and _VERSION.fullmatch(lines[at + 1]) is not None
        and lines.last <= at + 1
    )


def marker_error(lines: Lines, at: int) -> PatchError | None:
    """The error for a conflict marker outside the body of a hunk."""
    if not lines.starts(at, *_MARKERS):
        return None
    return lines.error(
        at, "markers", "the patch file itself has a conflict marker", expected="a merged patch file",
        fix="resolve it in the patch file, or take one side with: git checkout --ours FILE",
    )  # fmt: skip


def _belongs(lines: Lines, at: int) -> bool:
    return lines.starts(at, *_BODY) and not is_signature(lines, at)


def _count(lines: Lines, at: int) -> tuple[int, int, int]:
    """The old lines and new lines in the body that starts at `at`, whatever its header says, and its end."""
    old = new = 0
    while _belongs(lines, at):
        prefix = lines[at][:1]
        old += prefix in b" -"
        new += prefix in b" +"
        at += 1
    return old, new, at


def _header(lines: Lines, at: int) -> tuple[int, int, int, int, bytes]:
    match = _HEADER.fullmatch(lines[at])
    if match is None:
        raise lines.error(at, "hunk-header", "not a hunk header", expected="@@ -LINE,COUNT +LINE,COUNT @@")
    old_start, old_count, new_start, new_count = (1 if g is None else int(g) for g in match.groups()[:4])
    return old_start, old_count, new_start, new_count, match[5] or b""


def _mismatch(lines: Lines, at: int, start: int, old_count: int, new_count: int) -> PatchError:
    """The error for a body that ends too early, or goes on, at line `at`."""
    old, new, end = _count(lines, start + 1)
    marker = marker_error(lines, end)
    if marker is not None:
        return marker
    goes_on = _belongs(lines, end + 1) or lines.starts(end + 1, b"@@ ", b"diff --git ")
    if end < len(lines) and not lines[end] and goes_on:
        return lines.error(
            end, "whitespace", "an empty line in a hunk: white space was taken off the ends of lines",
            expected="a line that starts with a space, + or -",
            fix="restore the patch from git, or " + REMAKE,
        )  # fmt: skip
    cut = end >= len(lines) and old <= old_count and new <= new_count
    return lines.error(
        start, "counts", "the counts of the hunk header disagree with the hunk" + cut * ", where the file ends",
        found=f"the body has {old} old and {new} new lines",
        expected=f"the header says {old_count} old and {new_count} new lines",
        fix=cut * "if the file was cut off, get it again; " + _BY_HAND,
    )  # fmt: skip


class Hunks:
    """Reads the hunks of one file in order and knows what must come next."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._hunks: list[Hunk] = []
        self._old_end = self._new_end = 0  # lines of either file that are behind us
        self._old_closed = self._new_closed = False  # a side's last line, without newline, was seen

    def read(self, at: int) -> tuple[tuple[Hunk, ...], int]:
        """The hunks from line `at` on and the index of the line after them (raises `PatchError`)."""
        while self._lines.starts(at, b"@@ "):
            at = self._hunk(at)
        return tuple(self._hunks), at

    def _hunk(self, start: int) -> int:
        lines = self._lines
        old_start, old_count, new_start, new_count, section = _header(lines, start)
        at = start + 1
        old, new = old_count, new_count
        changes = False
        while old or new:
            prefix = lines[at][:1] if at < len(lines) else b""
            if prefix == b"\\" and lines.starts(at, b"\\ "):
                self._close(start, at)
            elif prefix in (b" ", b"-", b"+") and not is_signature(lines, at):
                takes_old, takes_new = prefix != b"+", prefix != b"-"
                if (takes_old and not old) or (takes_new and not new):
                    raise _mismatch(lines, at, start, old_count, new_count)
                if (takes_old and self._old_closed) or (takes_new and self._new_closed):
                    raise self._misplaced(at)
                old -= takes_old
                new -= takes_new
                changes |= prefix != b" "
            else:
                raise _mismatch(lines, at, start, old_count, new_count)
            at += 1
        if lines.starts(at, b"\\ "):
            self._close(start, at)
            at += 1
        if lines.starts(at, b"\\ "):
            raise self._misplaced(at)
        if _belongs(lines, at):
            raise _mismatch(lines, at, start, old_count, new_count)
        if not changes:
            raise lines.error(start, "empty-hunk", "a hunk that changes nothing", expected="lines with + or -")
        body = tuple(lines.text[start + 1 : at])
        hunk = Hunk(old_start, old_count, new_start, new_count, section, body, start + 1)
        self._place(hunk, start)
        self._hunks.append(hunk)
        return at

    def _close(self, start: int, at: int) -> None:
        """A `\\ No newline` line: the side of the line above it ends there."""
        above = self._lines[at - 1][:1] if at - 1 > start else b""
        if above not in (b" ", b"+", b"-"):
            raise self._misplaced(at)
        self._old_closed |= above != b"+"
        self._new_closed |= above != b"-"

    def _misplaced(self, at: int) -> PatchError:
        return self._lines.error(
            at, "no-newline", r"a '\ No newline at end of file' that is not at the end of the file",
            expected="it after the last line of the old or of the new file only",
        )  # fmt: skip

    def _place(self, hunk: Hunk, start: int) -> None:
        """Git looks for a hunk from its new line on: a wrong one may find a look-alike, so it is refused."""
        if (hunk.old_count and not hunk.old_start) or (hunk.new_count and not hunk.new_start):
            raise self._lines.error(start, "hunk-header", "a hunk at line 0 of a file", expected="lines from 1")
        if hunk.old_before < self._old_end:
            raise self._lines.error(
                start, "hunk-order", "a hunk that lies before the end of the hunk above it",
                expected=f"an old line after {self._old_end}",
            )  # fmt: skip
        expected = self._new_end + hunk.old_before - self._old_end
        if hunk.new_before != expected:
            raise self._lines.error(
                start, "counts", "the line numbers of the hunk disagree with the hunks above it",
                expected=f"+{expected + 1 if hunk.new_count else expected} for the new file",
                fix=_BY_HAND,
            )  # fmt: skip
        self._old_end = hunk.old_before + hunk.old_count
        self._new_end = hunk.new_before + hunk.new_count
