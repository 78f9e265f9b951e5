"""What a diff found, for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kunlunfork import paths
from kunlunfork.cache import Cache
from kunlunfork.diff import fate, interfaces, overlap, points, provenance, table, text
from kunlunfork.diff.facts import Reader
from kunlunfork.diff.fate import Fate
from kunlunfork.diff.interfaces import Interfaces
from kunlunfork.diff.overlap import Met
from kunlunfork.diff.points import Checked
from kunlunfork.diff.provenance import PATCH, Origin
from kunlunfork.diff.sides import Sides
from kunlunfork.diff.table import Row
from kunlunfork.diff.text import FileDiff


@dataclass(frozen=True)
class Report:
    """`area` and `pin` are what was asked for; `against` a newer release; `tree` a folder that stands for the fork.

    `ours` is what the fork changes in the pin's release, `theirs` what `against` changes there; `met` both, by file.
    `contents` are the files before and after, where they are wanted. `headings` say for each hunk of the fork's side
    which classes and functions it changes.
    """

    area: str
    pin: str
    against: str | None
    tree: str | None
    ours: tuple[FileDiff, ...]
    theirs: tuple[FileDiff, ...]
    met: tuple[Met, ...]
    origins: Mapping[bytes, Origin] = field(default_factory=dict)
    fates: tuple[Fate, ...] = ()
    symbols: tuple[Row, ...] | None = None
    contents: Mapping[FileDiff, tuple[bytes, bytes]] = field(default_factory=dict)
    headings: Mapping[bytes, tuple[str, ...]] = field(default_factory=dict)
    interfaces: Interfaces | None = None
    points: tuple[Checked, ...] = ()

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
            "files": [self._met(met) for met in self.met],
            "fates": [each.as_json() for each in self.fates],
            "symbols": None if self.symbols is None else [row.as_json() for row in self.symbols],
            "interfaces": None if self.interfaces is None else self.interfaces.as_json(),
            "dspark": [each.as_json() for each in self.points],
        }

    def fates_of(self, diff: FileDiff) -> tuple[tuple[Fate, ...], ...]:
        """What becomes of each hunk of a file of the fork's side; where that cannot be told, what may be its fate."""
        origin = self.origins.get(diff.path)
        found: list[dict[Fate, None]] = [{} for _ in diff.section.hunks]
        if origin is None:
            return tuple(() for _ in found)
        names = {source.name: None for source in origin.whole if source.kind == PATCH}
        for name in names:
            mine = [f for f in self.fates if f.patch == name and f.path in (diff.path, diff.section.old_path)]
            runs = [
                at for at, hunk in enumerate(origin.runs) for run in hunk if any(source.name == name for source in run)
            ]
            if len(runs) == len(mine):
                for at, each in zip(runs, mine, strict=True):
                    found[at][each] = None
            else:
                for at in runs:
                    found[at] |= dict.fromkeys(mine)
        return tuple(tuple(each) for each in found)

    def _met(self, met: Met) -> dict[str, Any]:
        side = _side(met.ours)
        if side is not None and met.ours is not None:
            origin = self.origins.get(met.ours.path)
            side["sources"] = [source.as_json() for source in origin.whole] if origin is not None else []
            fates = self.fates_of(met.ours)
            for at, hunk in enumerate(side["hunks"]):
                hunk["sources"] = [source.as_json() for source in origin.hunks[at]] if origin is not None else []
                hunk["symbols"] = self.headings.get(met.ours.path, ("",) * (at + 1))[at]
                hunk["fates"] = [each.as_json() for each in fates[at]]
        return {
            "path": paths.to_text(met.path), "fork": side, "mainline": _side(met.theirs), "same_lines": list(met.hunks),
        }  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What a report is to hold beside the text; `context` lines around a change; `contents`: whole files."""

    context: int = text.CONTEXT
    symbols: bool = False
    interfaces: bool = False
    contents: bool = False


def make(sides: Sides, cache: Cache, parts: Parts | None = None) -> Report:
    """Compare the sides (raises `ForkError` where git fails).

    Args:
        cache: where facts of upstream's files are kept.
    """
    parts = parts or Parts()
    reader = Reader(sides.store, cache)
    effect = sides.ours()
    ours = text.compare(sides.store, effect, parts.context)
    theirs = text.compare(sides.store, sides.theirs(), parts.context)
    return Report(
        sides.selection.name, sides.fork.pin.version, None if sides.against is None else sides.against[0],
        None if sides.root is None else str(sides.root), ours, theirs, overlap.meet(ours, theirs),
        provenance.find(sides, ours), fate.find(sides, sides.rungs, frozenset(effect)),
        table.make(sides, reader, theirs) if parts.symbols else None,
        _contents(sides, ours, theirs) if parts.contents else {}, {diff.path: reader.headings(diff) for diff in ours},
        interfaces.make(sides, reader) if parts.interfaces else None, points.check(sides) if parts.interfaces else (),
    )  # fmt: skip


def _contents(sides: Sides, *groups: Sequence[FileDiff]) -> dict[FileDiff, tuple[bytes, bytes]]:
    """The bytes of the files before and after."""

    def blob(name: str | None) -> bytes:
        return b"" if name is None else sides.store.blob(name)

    return {
        diff: (blob(diff.section.old_blob), blob(diff.section.new_blob))
        for group in groups for diff in group if diff.section.hunks and not diff.section.binary
    }  # fmt: skip


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
