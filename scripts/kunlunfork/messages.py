"""A patch's header as the author, date and message of a commit, and back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime, parsedate_to_datetime

from kunlunfork import git
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch, message_conflict
from kunlunfork.patchheader import parse_header

PATCH, PIN, OVERLAY, BASE = "Kunlunfork-Patch", "Kunlunfork-Pin", "Kunlunfork-Overlay", "Kunlunfork-Base"
TOUCHES = "Touches"

_IDENTITY = re.compile(r"\s*(.*?)\s*<([^<>]*)>\s*", re.DOTALL)
_TRAILER = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)", re.DOTALL)
_ZONE = re.compile(r"([+-])(\d\d)(\d\d)")


@dataclass(frozen=True)
class Text:
    """What a commit says besides its tree.

    `time` is in seconds since 1970, `zone` as git has it (`+0800`). `fields` are the lines `Name: value` of the last
    paragraph, in order, the lines of a folded value joined with a newline; `body` is what lies between subject and
    fields, without empty lines at its ends.
    """

    name: str
    mail: str
    time: int
    zone: str
    subject: str
    body: bytes
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The first value of a field, its name in any case."""
        return next((value for field, value in self.fields if field.lower() == name.lower()), None)

    def without(self, *names: str) -> Text:
        low = {name.lower() for name in names}
        return replace(self, fields=tuple(f for f in self.fields if f[0].lower() not in low))

    @property
    def message(self) -> bytes:
        """The commit message."""
        fields = [_encode(f"{name}: " + "\n ".join(value.split("\n"))) for name, value in self.fields]
        parts = [_encode(self.subject), self.body, b"\n".join(fields)]
        return b"\n\n".join(part for part in parts if part) + b"\n"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def of_patch(patch: Patch, version: str) -> Text:
    """What a patch says, as a commit of a `--git` tree has it; `Touches` stays behind, being computed."""
    head = patch.header
    match = _IDENTITY.fullmatch(head.from_)
    name, mail = (match[1], match[2]) if match else (head.from_, "")
    time, zone = _date(head.date)
    fields = (*head.fields, (PATCH, patch.name), (PIN, version))
    text = Text(_clean(name) or "unknown", _clean(mail), time, zone, head.subject or patch.name, head.body, fields)
    return text.without(TOUCHES)


def now(subject: str) -> Text:
    """A patch without text that is written now, by whom git knows."""
    who = []
    for key in ("name", "email"):
        known = [os.environ.get(f"GIT_AUTHOR_{key.upper()}"), *map(_decode, reversed(git.configured(f"user.{key}")))]
        who.append(next(filter(None, known), ""))
    time = datetime.now().astimezone()
    return Text(
        _clean(who[0]) or "unknown", _clean(who[1]) or "unknown@invalid", int(time.timestamp()),
        time.strftime("%z")[:5], " ".join(subject.split()), b"", (),
    )  # fmt: skip


def _clean(text: str) -> str:
    """A part of an identity as git takes it."""
    return re.sub(r"[<>\n\0]", "", text).strip()


def _date(text: str) -> tuple[int, str]:
    try:
        date = parsedate_to_datetime(text)
        offset = date.utcoffset() or timedelta()
        time = int((date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp())
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0, "+0000"
    minutes = int(offset.total_seconds()) // 60
    return time, f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


def parse_message(message: bytes, name: str, mail: str, time: int, zone: str) -> Text:
    """Read a commit's message; `name` ... `zone` are its author's."""
    lines = [line.rstrip(b"\r") if line.endswith(b"\r") else line for line in message.split(b"\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    while lines and not lines[0].strip():
        lines.pop(0)
    end = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    subject, rest = b" ".join(line.strip() for line in lines[:end]), lines[end:]
    body: list[bytes] = []
    fields: list[tuple[str, str]] = []
    at = 0
    while at < len(rest):
        stop = next((i for i in range(at, len(rest)) if bool(rest[i].strip()) != bool(rest[at].strip())), len(rest))
        found = _fields(rest[at:stop])
        if found is not None and (stop == len(rest) or _ours(found)):
            fields += found
            # The empty lines after it go with it.
            stop = next((i for i in range(stop, len(rest)) if rest[i].strip()), len(rest))
        else:
            body += rest[at:stop]
        at = stop
    return Text(name, mail, time, zone, _decode(subject), b"\n".join(body).strip(b"\n"), tuple(fields))


def _ours(fields: Iterable[tuple[str, str]]) -> bool:
    """Whether fields above the end of a message are a patch's: git puts the text of a `squash!` commit below them."""
    names = {name for name, _ in fields}
    return bool(names & {PATCH, OVERLAY, BASE}) or names >= {"Upstream-Status", "Remove-When"}


def _fields(lines: list[bytes]) -> tuple[tuple[str, str], ...] | None:
    """The fields of a paragraph, None where a line of it is something else, or where it has none."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        match = _TRAILER.fullmatch(line)
        if match is not None:
            found.append((match[1].decode("ascii"), [_decode(match[2]).strip()]))
        elif found and line.startswith((b" ", b"\t")):
            found[-1][1].append(_decode(line).strip())
        else:
            return None
    return tuple((name, "\n".join(values)) for name, values in found) or None


def header(text: Text, touches: Iterable[str], *, what: str) -> bytes:
    """The head of a patch file, down to its `---`.

    A line of the body that a reader would take for the start of the diff is moved in by a space.

    Args:
        what: the commit, for messages.

    Raises:
        ForkError: the header could not be read back as it was meant.
    """
    said = text.without(PATCH, PIN, OVERLAY, TOUCHES)
    if not said.subject:
        raise _unkept(what, "no subject")
    subject = f"[PATCH] {said.subject}" if said.subject.startswith("[PATCH") else said.subject
    for name, value in said.fields:
        if name.lower() in ("from", "date", "subject"):
            raise _unkept(what, f"`{name}: {value}` among its fields, which a header has of its own")
    fields = [*said.fields, *((TOUCHES, touch) for touch in touches)]
    lines = [f"From: {said.name} <{said.mail}>", f"Date: {_rfc2822(said.time, said.zone)}", f"Subject: {subject}"]
    lines += [f"{name}: " + "\n ".join(value.split("\n")) for name, value in fields]
    head = _encode("\n".join(lines)) + b"\n"
    body = said.body
    while True:
        raw = head + (b"\n" + body + b"\n" if body else b"\n") + b"---\n"
        at = message_conflict(raw)
        if at is None:
            break
        first = at - 1 - (head.count(b"\n") + 1)
        parts = body.split(b"\n")
        if not 0 <= first < len(parts):
            raise _unkept(what, f"line {at} would start the diff")
        parts[first] = b" " + parts[first]
        body = b"\n".join(parts)
    read = parse_header(raw)
    if (read.subject, read.fields, read.body) != (said.subject, tuple(fields), body):
        raise _unkept(what, "it would be read back differently")
    return raw


def _unkept(what: str, found: str) -> ForkError:
    return ForkError(
        f"the message of {what} cannot stand in a patch's header",
        found=found,
        expected="a subject, text, and fields `Name: value` at its end",
        fix="reword the commit, then export again",
    )


def _rfc2822(time: int, zone: str) -> str:
    match = _ZONE.fullmatch(zone)
    offset = timedelta(hours=int(match[2]), minutes=int(match[3])) if match else timedelta()
    if match and match[1] == "-":
        offset = -offset
    try:
        return format_datetime(datetime.fromtimestamp(time, timezone(offset)))
    except (OverflowError, OSError, ValueError):
        return format_datetime(datetime.fromtimestamp(0, timezone.utc))


def with_touches(head: bytes, touches: Iterable[str]) -> bytes:
    """A patch's head with other `Touches` fields, every other byte kept."""
    lines = head.split(b"\n")
    start = end = 1 if lines[0].startswith(b"From ") else 0
    fields: list[list[bytes]] = []
    while end < len(lines):
        line = lines[end]
        if _TRAILER.fullmatch(line):
            fields.append([line])
        elif fields and line.startswith((b" ", b"\t")) and line.strip():
            fields[-1].append(line)
        else:
            break
        end += 1
    mark = TOUCHES.lower().encode() + b":"
    old = [i for i, field in enumerate(fields) if field[0].lower().startswith(mark)]
    at = old[0] if old else len(fields)
    new = [[_encode(f"{TOUCHES}: {touch}")] for touch in touches]
    fields = [*fields[:at], *new, *(field for i, field in enumerate(fields) if i > at and i not in old)]
    return b"\n".join([*lines[:start], *(line for field in fields for line in field), *lines[end:]])


def header_of(patch: Patch) -> bytes:
    """The bytes of a patch file above its diff."""
    return patch.raw[: patch.files[0].start]
