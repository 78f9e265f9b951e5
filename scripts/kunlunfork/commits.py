"""Commits as git stores them, written and read byte for byte."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kunlunfork.errors import ForkError
from kunlunfork.messages import Text, parse_message
from kunlunfork.objects import Repository

_AUTHOR = re.compile(rb"(.*?) ?<([^<>]*)> (-?\d+) ([+-]\d{4})", re.DOTALL)


@dataclass(frozen=True)
class Commit:
    """One commit: its id, its tree's id, its parents' ids, and what it says."""

    id: str
    tree: str
    parents: tuple[str, ...]
    text: Text

    @property
    def shown(self) -> str:
        return f"{self.id[:10]} ({self.text.subject})"


def write(repository: Repository, tree: str, parent: str | None, text: Text) -> str:
    """Store a commit and return its id. The same content gives the same id: its committer has the author's date."""
    date = f"{text.time} {text.zone}"
    lines = [f"tree {tree}", *([f"parent {parent}"] if parent else []), f"author {text.name} <{text.mail}> {date}"]
    lines.append(f"committer kunlunfork <kunlunfork@invalid> {date}")
    data = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n\n" + text.message
    return repository.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=data).decode().strip()


def read(repository: Repository, ids: Sequence[str]) -> tuple[Commit, ...]:
    """These commits, in this order (raises `ForkError` where one is none)."""
    return tuple(_parse(name, repository.git("cat-file", "commit", name)) for name in ids)


def _parse(name: str, raw: bytes) -> Commit:
    head, _, message = raw.partition(b"\n\n")
    fields: dict[bytes, list[bytes]] = {}
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        # A line that starts with a space goes on with the one before it (gpgsig).
        if key:
            fields.setdefault(key, []).append(value)
    author = _AUTHOR.fullmatch(fields.get(b"author", [b""])[0])
    if author is None or b"tree" not in fields:
        raise ForkError(f"commit {name} cannot be read", found=head.decode(errors="replace").splitlines()[0])
    encoding = fields.get(b"encoding", [b"utf-8"])[0].decode("ascii", "replace")
    who, mail = (_decode(part, encoding) for part in author.groups()[:2])
    text = parse_message(_decode(message, encoding).encode("utf-8", "surrogateescape"), who, mail,
                         int(author[3]), author[4].decode())  # fmt: skip
    return Commit(name, fields[b"tree"][0].decode(), tuple(p.decode() for p in fields.get(b"parent", [])), text)


def _decode(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding, "surrogateescape")
    except (LookupError, UnicodeError):
        return data.decode("utf-8", "surrogateescape")
