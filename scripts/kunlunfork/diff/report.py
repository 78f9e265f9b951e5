"""What a diff found, for every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunlunfork import paths
from kunlunfork.diff import overlap, text
from kunlunfork.diff.overlap import Met
from kunlunfork.diff.sides import Sides
from kunlunfork.diff.text import FileDiff


@dataclass(frozen=True)
class Report:
    """`area` and `pin` are what was asked for; `against` a newer release; `tree` a folder that stands for the fork.

    `ours` is what the fork changes in the pin's release, `theirs` what `against` changes there; `met` both, by file.
    """

    area: str
    pin: str
    against: str | None
    tree: str | None
    ours: tuple[FileDiff, ...]
    theirs: tuple[FileDiff, ...]
    met: tuple[Met, ...]

    @property
    def differs(self) -> bool:
        return bool(self.ours or self.theirs)

    @property
    def mine(self) -> str:
        """What the fork's side is called."""
        return "fork" if self.tree is None else "tree"

    def as_json(self) -> dict[str, Any]:
        """The `result` of the JSON object. Lines count from 1; paths are those of the tree."""
        return {
            "area": self.area,
            "pin": self.pin,
            "against": self.against,
            "tree": self.tree,
            "differs": self.differs,
            "files": [_met(met) for met in self.met],
        }


def make(sides: Sides, context: int = text.CONTEXT) -> Report:
    """Compare the sides (raises `ForkError` where git fails)."""
    ours = text.compare(sides.store, sides.ours(), context)
    theirs = text.compare(sides.store, sides.theirs(), context)
    return Report(
        sides.selection.name, sides.fork.pin.version, None if sides.against is None else sides.against[0],
        None if sides.root is None else str(sides.root), ours, theirs, overlap.meet(ours, theirs),
    )  # fmt: skip


def _met(met: Met) -> dict[str, Any]:
    return {
        "path": paths.to_text(met.path),
        "fork": _side(met.ours),
        "mainline": _side(met.theirs),
        "same_lines": list(met.hunks),
    }


def _side(diff: FileDiff | None) -> dict[str, Any] | None:
    if diff is None:
        return None
    section = diff.section
    return {
        "kind": section.kind,
        "old_path": None if section.old_path is None else paths.to_text(section.old_path),
        "new_path": None if section.new_path is None else paths.to_text(section.new_path),
        "added": diff.added,
        "removed": diff.removed,
        "binary": section.binary,
        "hunks": [
            {
                "old_start": hunk.old_start, "old_count": hunk.old_count,
                "new_start": hunk.new_start, "new_count": hunk.new_count,
                "section": hunk.section.decode("utf-8", "backslashreplace"),
            }
            for hunk in section.hunks
        ],
    }  # fmt: skip
