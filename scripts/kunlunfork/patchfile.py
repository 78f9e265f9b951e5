"""Patches as git writes them (`git diff --full-index --binary`, perhaps below the head of a mail), as bytes.

This only splits and understands; git applies, after the caller has compared blob ids and modes. What cannot
be understood without doubt is refused: git would find a place for it, or leave it out, and say nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from kunlunfork.hunks import Hunk, is_signature, marker_error
from kunlunfork.patchextended import EXTENDED
from kunlunfork.patchheader import Header, parse_header
from kunlunfork.patchlines import REMAKE, Lines, PatchError
from kunlunfork.patchsection import FilePatch, Kind, read_section

__all__ = ["FilePatch", "Header", "Hunk", "Kind", "Patch", "PatchError", "message_conflict", "parse_patch"]

_COMBINED = (b"diff --cc ", b"diff --combined ")
_ENCODING = re.compile(rb"^content-transfer-encoding:\s*(quoted-printable|base64)", re.IGNORECASE | re.MULTILINE)
_INDENT = "if it is text of the message, put a space before each of its lines"
_CRLF_FIX = "keep `*.patch -text` in .gitattributes, delete the file and check it out again: git checkout -- FILE"


@dataclass(frozen=True)
class Patch:
    """A patch file: `raw` is all of it, `files` its sections in order."""

    name: str
    raw: bytes
    header: Header
    files: tuple[FilePatch, ...]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file, as hex."""
        return sha256(self.raw).hexdigest()

    @property
    def diff(self) -> bytes:
        """The diff alone: from the first `diff --git` to the end of the last section, without a signature."""
        return self.raw[self.files[0].start : self.files[-1].end]


def _refuse_encodings(lines: Lines) -> None:
    raw = lines.raw
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        raise lines.error(
            0, "encoding", "a byte order mark: a shell or an editor converted the patch file",
            expected="the bytes that git wrote", fix="write it with git: git diff --output=FILE",
        )  # fmt: skip
    if lines.starts(0, b"") and lines[0].endswith(b"\r"):
        raise _crlf(lines, 0)
    head = raw.partition(b"\n\n")[0]
    encoding = _ENCODING.search(head)
    if encoding is not None:
        raise lines.error(
            head.count(b"\n", 0, encoding.start()), "encoding",
            "an encoded mail: its bytes are not those of the diff",
            expected="the bytes that git wrote", fix="write it with git: git format-patch",
        )  # fmt: skip


def _crlf(lines: Lines, at: int) -> PatchError:
    return lines.error(
        at,
        "crlf",
        "the patch file itself was checked out with CRLF",
        expected="lines that end with LF",
        fix=_CRLF_FIX,
    )


def _opens_section(lines: Lines, at: int) -> bool:
    """Whether a section starts at line `at`, not just a message that mentions `diff --git`."""
    if not lines.starts(at, b"diff --git "):
        return False
    if lines.starts(at + 1, *EXTENDED, b"GIT binary patch", b"Binary files "):
        return True
    return lines.starts(at + 1, b"--- ") and lines.starts(at + 2, b"+++ ")


def _find_start(lines: Lines) -> int | None:
    """The line of the first section, None where there is none.

    A message may hold `---`, `@@`, `From ` or a bare `diff --git` line. It may not hold a diff: were that passed
    over as text, so would be the first sections of a damaged patch. So the first section starts the diff, and
    text after it is an error.
    """
    for at in range(len(lines)):
        if _opens_section(lines, at):
            if lines[at].endswith(b"\r"):
                raise _crlf(lines, at)
            return at
        if lines.starts(at, b"--- ") and lines.starts(at + 1, b"+++ ") and lines.starts(at + 2, b"@@ -"):
            raise lines.error(
                at, "not-git", "a diff without `diff --git` and `index` lines, so without blob ids",
                expected="a patch in git's format", fix=f"{REMAKE}; {_INDENT}",
            )  # fmt: skip
        if lines.starts(at, *_COMBINED) and lines.starts(at + 1, b"index "):
            raise lines.error(
                at, "combined", "the diff of a merge against both parents, which cannot be applied",
                expected="a diff against one parent",
            )  # fmt: skip
    return None


def _no_diff(lines: Lines) -> PatchError:
    markers = (marker_error(lines, at) for at in range(len(lines)) if lines.starts(at, b"<<<<<<< "))
    return next(filter(None, markers), None) or lines.error(
        len(lines), "no-diff", "the file has no diff", expected="at least one `diff --git` section",
        found=f"{len(lines)} lines without one",
    )  # fmt: skip


def _check_tail(lines: Lines, at: int) -> None:
    """Only empty lines and the signature of a mail may follow the last section."""
    if at == len(lines) and not lines.complete:
        raise lines.error(
            at - 1, "truncated", "the file ends in the middle of a line", expected="a newline at the end",
            fix="get the whole patch file again",
        )  # fmt: skip
    while at < len(lines) and not lines[at]:
        at += 1
    if at == len(lines) or is_signature(lines, at):
        return
    marker = marker_error(lines, at)
    if marker is not None:
        raise marker
    if lines.starts(at, b"From "):
        raise lines.error(at, "junk", "a second mail in one file", expected="one patch a file", fix="git mailsplit")
    if any(_opens_section(lines, later) for later in range(at, len(lines))):
        raise lines.error(
            at, "junk", "text between two sections of the diff", expected="`diff --git`",
            fix=f"remove it; for the section above it: {_INDENT}",
        )  # fmt: skip
    raise lines.error(
        at,
        "junk",
        "text after the end of the diff",
        expected="the end of the file",
        fix="remove it, or " + REMAKE,
    )


def parse_patch(name: str, raw: bytes) -> Patch:
    """Read a patch file.

    Raises:
        PatchError: (a `ForkError`) with the patch's name, the line, what was found and what was expected.
    """
    lines = Lines(name, raw)
    _refuse_encodings(lines)
    start = _find_start(lines)
    if start is None:
        raise _no_diff(lines)
    files = []
    at = start
    while lines.starts(at, b"diff --git "):
        file, at = read_section(lines, at)
        files.append(file)
    _check_tail(lines, at)
    return Patch(name, raw, parse_header(raw[: lines.offset(start)]), tuple(files))


def message_conflict(message: bytes) -> int | None:
    """The line (from 1) at which a reader would take a commit message for the start of the diff.

    None where the message can stand above a diff as it is. A writer of patches asks before it writes.
    """
    lines = Lines("message", message + b"\n")
    try:
        start = _find_start(lines)
    except PatchError as e:
        return e.line
    return None if start is None else start + 1
