"""The head of a patch: who, when, why, and the fields that say what becomes of it."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import dataclass

_FIELD = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)", re.DOTALL)
_PREFIX = re.compile(r"\[PATCH[^\]]*\]\s*")
_ENCODED = re.compile(r"=\?([A-Za-z0-9-]+)\?([bBqQ])\?([!->@-~]*)\?=")
_BETWEEN = re.compile(r"(=\?[^?\s]+\?[bBqQ]\?[!->@-~]*\?=)\s+(?==\?[^?\s]+\?[bBqQ]\?)")
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
# The character sets of mails that people send patches in; any other word stays as it is written.
_CHARSETS = ("utf-8", "us-ascii", "iso-8859-1", "iso-8859-15")
# What `git format-patch` puts between its `---` and the diff.
_DIFFSTAT = re.compile(
    rb" .+ \| +(\d+( [+-]*)?|Bin.*|Unmerged)| \d+ files? changed.*"
    rb"| (create|delete) mode \d{6} .+| (rename|copy|rewrite|mode change) .+"
)


@dataclass(frozen=True)
class Header:
    """What stands above the diff.

    `subject` has no `[PATCH]`. `fields` are all fields but From, Date and Subject, in order; the lines of a
    folded value are joined with a newline. A second From, Date or Subject is in `fields` too.
    `body` is the free text, without empty lines at its ends and without the `---` and diffstat of a mail.
    What is not there is empty.
    """

    subject: str
    from_: str
    date: str
    fields: tuple[tuple[str, str], ...]
    body: bytes

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of the field `name` (in any case), in order."""
        return tuple(value for field, value in self.fields if field.lower() == name.lower())

    def get(self, name: str) -> str | None:
        """The first value of the field `name`, or None."""
        return next(iter(self.all(name)), None)


def _decode_word(match: re.Match[str]) -> str:
    charset, encoding, text = match[1].lower(), match[2].lower(), match[3].encode("ascii")
    if charset not in _CHARSETS:
        return match[0]
    try:
        if encoding == "b":
            return b64decode(text, validate=True).decode(charset)
        plain = text.replace(b"_", b" ")
        return _HEX.sub(lambda m: bytes([int(m[1], 16)]), plain).decode(charset)
    except ValueError:
        return match[0]


def _words(text: str) -> str:
    """A value with the `=?UTF-8?q?...?=` of `git format-patch` decoded."""
    return _ENCODED.sub(_decode_word, _BETWEEN.sub(r"\1", text))


def _subject(text: str) -> str:
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _body(lines: list[bytes]) -> bytes:
    """Free text without the separator of a mail: the last `---` that only a diffstat follows."""
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if line.rstrip() == b"---":
            lines = lines[:at]
            break
        if line and not _DIFFSTAT.fullmatch(line):
            break
    return b"\n".join(lines).strip(b"\n")


def parse_header(raw: bytes) -> Header:
    """Read what stands before the diff, as UTF-8 (other bytes survive as surrogates).

    Never raises: what is missing is empty, and lint says what must be there.
    """
    lines = raw.split(b"\n")
    at = 1 if lines[0].startswith(b"From ") else 0
    found: list[tuple[str, list[str]]] = []
    while at < len(lines):
        line = lines[at]
        match = _FIELD.fullmatch(line)
        if match is not None:
            found.append((match[1].decode("ascii"), [_text(match[2]).strip()]))
        elif found and line.startswith((b" ", b"\t")) and line.strip():
            found[-1][1].append(_text(line).strip())
        else:
            break
        at += 1
    first: dict[str, str] = {}
    fields: list[tuple[str, str]] = []
    for name, values in found:
        if name.lower() in ("from", "date", "subject") and name.lower() not in first:
            first[name.lower()] = " ".join(values).strip()
        else:
            fields.append((name, "\n".join(values).strip()))
    return Header(
        subject=_subject(_words(first.get("subject", ""))),
        from_=_words(first.get("from", "")),
        date=first.get("date", ""),
        fields=tuple(fields),
        body=_body(lines[at:]),
    )
