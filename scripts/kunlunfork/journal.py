"""The journal: a change of a tree that is under way, enough to finish it or to undo it after a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kunlunfork import lock as locks
from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.lock import Lock
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry

SCHEMA = 1
NAME = "journal.json"
STAGE = "stage"
PRE = "pre"
# Ends the name of a file that is about to be renamed to its own.
NEW = ".new"
# The state folder of a plain tree; that of an installed one lies in its dist-info.
PLAIN_STATE = ".kunlunfork"
# Keeps the state folder out of the sight of git where the tree is a checkout: not listed, not cleaned away.
IGNORE = ".gitignore"

Verb = Literal["apply", "update", "revert"]
VERBS: tuple[Verb, ...] = ("apply", "update", "revert")


@dataclass(frozen=True)
class Change:
    """One path: what lies there before and after, each with its permission bits (None where nothing lies there)."""

    path: bytes
    before: Entry | None
    after: Entry | None
    before_perm: int | None = None
    after_perm: int | None = None


@dataclass(frozen=True)
class Journal:
    """`lock` is what the tree's lock will be (None: the tree goes back to upstream); `made` are folders to be made."""

    verb: Verb
    changes: tuple[Change, ...]
    made: tuple[bytes, ...]
    lock: Lock | None
    old_lock: Lock | None = None
    # Bytes that are not in the state folder yet; only the process that plans has them.
    data: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


def fresh_perm(mode: int) -> int:
    """The permission bits of a new file, as git and tar would give them."""
    umask = os.umask(0)
    os.umask(umask)
    return (0o777 if mode == EXECUTABLE else 0o666) & ~umask


def with_mode(perm: int, mode: int) -> int:
    """These permission bits, with or without those that make a file executable."""
    return perm & ~0o111 if mode == REGULAR else perm | (perm & 0o444) >> 2


def _pack(entry: Entry | None, perm: int | None) -> list[object] | None:
    return None if entry is None else [f"{entry.mode:o}", entry.blob, None if perm is None else f"{perm:o}"]


def _unpack(raw: Any) -> tuple[Entry | None, int | None]:
    if raw is None:
        return None, None
    mode, blob, perm = raw
    if int(mode, 8) not in paths.MODES or len(blob) != 40 or set(blob) - set("0123456789abcdef"):
        raise ValueError("an entry is not valid")
    return Entry(int(mode, 8), blob), None if perm is None else int(perm, 8) & 0o7777


def dump(journal: Journal) -> bytes:
    def as_text(lock: Lock | None) -> str | None:
        return None if lock is None else locks.dump(lock).decode()

    raw = {
        "schema": SCHEMA,
        "verb": journal.verb,
        "pid": os.getpid(),
        "changes": [
            [paths.to_text(c.path), _pack(c.before, c.before_perm), _pack(c.after, c.after_perm)]
            for c in journal.changes
        ],
        "made": [paths.to_text(p) for p in journal.made],
        "lock": as_text(journal.lock),
        "old_lock": as_text(journal.old_lock),
    }
    return json.dumps(raw).encode() + b"\n"


def read(state: Path) -> Journal | None:
    """The journal in a state folder, or None where no change is under way.

    Raises:
        ForkError: it cannot be read or is none of ours.
    """
    file = state / NAME
    try:
        raw = json.loads(paths.read_plain(file))
        if raw["schema"] != SCHEMA or raw["verb"] not in VERBS:
            raise ValueError(f"schema {raw['schema']!r}, verb {raw['verb']!r}")
        lock, old = (raw[k] and locks.load_bytes(raw[k].encode(), file) for k in ("lock", "old_lock"))
        changes = []
        for text, before, after in raw["changes"]:
            path = paths.check(paths.from_text(text), where=NAME)
            (b, bp), (a, ap) = _unpack(before), _unpack(after)
            changes.append(Change(path, b, a, bp, ap))
        made = tuple(paths.check(paths.from_text(p), where=NAME) for p in raw["made"])
        return Journal(raw["verb"], tuple(changes), made, lock, old)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ForkError(
            f"{file} is not a journal of kunlunfork",
            found=str(e) or "something that is no JSON",
            expected=f"schema {SCHEMA}, written by kunlunfork",
            fix="restore the file, or take a fresh tree of a release that is listed by: kunlunfork pins",
        ) from e
    except OSError as e:
        raise ForkError(f"{file} cannot be read", found=e.strerror or str(e)) from e


def write_file(path: Path, data: bytes, mode: int, perm: int, owner: os.stat_result | None = None) -> None:
    """Make a new file (never write into one that is there) with these bits, and give it its owner back."""
    if mode == SYMLINK:
        path.symlink_to(os.fsdecode(data))
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, perm)
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put a file of the state folder in place by a rename: it is whole or it is not there."""
    temporary = path.with_name(path.name + NEW)
    temporary.unlink(missing_ok=True)
    write_file(temporary, data, paths.REGULAR, fresh_perm(paths.REGULAR))
    if sync:
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    temporary.replace(path)


def hide(state: Path) -> None:
    replace_file(state / IGNORE, b"*\n", sync=False)
