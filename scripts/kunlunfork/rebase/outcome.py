"""What became of each patch and hunk on each step of a rebase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kunlunfork import paths
from kunlunfork.paths import Entry

UNCHANGED, MOVED, MERGED = "unchanged", "moved", "merged"
PARTLY, UPSTREAMED, SKIPPED, CONFLICT = "partly upstreamed", "upstreamed", "skipped", "conflict"
# From what needs no look to what needs a person.
KINDS = (UNCHANGED, MOVED, MERGED, PARTLY, UPSTREAMED, SKIPPED, CONFLICT)

# Classes of conflicts. `scope`: the text merged, but not into the function that the patch edits.
CONTENT, SCOPE, MODIFY_DELETE, RENAME, RENAME_DELETE = "content", "scope", "modify/delete", "rename", "rename/delete"
ADD_ADD, FILE_DIRECTORY, MODE, BINARY = "add/add", "file/directory", "mode", "binary"

ABSENT = "0" * 40


@dataclass(frozen=True)
class HunkFate:
    """One hunk: where it was (`line` of the file before, from 1) and is (`new_line`; None where it is no more)."""

    path: bytes
    line: int
    new_line: int | None
    kind: str

    def as_json(self) -> dict[str, Any]:
        return {"path": paths.to_text(self.path), "line": self.line, "new_line": self.new_line, "kind": self.kind}


@dataclass(frozen=True)
class Conflict:
    """One file that a person must look at.

    `old` is the file before the patch, `ours` after it, `new` upstream's with the patches before this one; None where
    there is no file. `merged` is what git made of it, where that is not to be trusted. `candidates` are files that it
    may have become.
    """

    path: bytes
    kind: str
    why: str
    old: Entry | None
    new: Entry | None
    ours: Entry | None
    merged: Entry | None = None
    candidates: tuple[bytes, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The three blob ids by which its resolution is known, and the path: many `__init__.py` are the same."""
        old, new, ours = (ABSENT if e is None else e.blob for e in (self.old, self.new, self.ours))
        return old, new, ours, paths.to_text(self.path)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": paths.to_text(self.path), "class": self.kind, "why": self.why,
            "candidates": [paths.to_text(p) for p in self.candidates],
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One patch on one step, to release `version`.

    `moves`: file before -> file after, where upstream or the patch renamed it. `how` says what was done beyond a merge
    of lines. `proof` says why the patch is upstream's by now.
    """

    patch: str
    version: str
    kind: str
    hunks: tuple[HunkFate, ...] = ()
    moves: tuple[tuple[bytes, bytes], ...] = ()
    how: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version, "outcome": self.kind,
            "hunks": [hunk.as_json() for hunk in self.hunks],
            "moves": {paths.to_text(a): paths.to_text(b) for a, b in self.moves},
            "how": list(self.how), "proof": list(self.proof),
            "conflicts": [conflict.as_json() for conflict in self.conflicts],
        }  # fmt: skip


def worst(kinds: Iterable[str]) -> str:
    """The one of these kinds that needs most attention."""
    return max(kinds, key=KINDS.index, default=UNCHANGED)
