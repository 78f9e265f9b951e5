"""Which patch, or which file of the overlay, each hunk comes from, and what its header says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kunlunfork import fork as forks
from kunlunfork.diff import text
from kunlunfork.diff.sides import Sides
from kunlunfork.diff.text import FileDiff
from kunlunfork.patchfile import Patch
from kunlunfork.rebase import linediff

PATCH, OVERLAY, STAMP, EDIT = "patch", "overlay", "stamp", "edit"
# Of a line: it is the base's own, or one that a person changed in a tree; else the number of a patch.
_BASE, _EDIT = -2, -1


@dataclass(frozen=True)
class Source:
    """`kind` is one of those above; `name` the patch's file name, or the version whose overlay ships the file."""

    kind: str
    name: str
    subject: str = ""
    status: str | None = None
    remove_when: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "name": self.name, "subject": self.subject, "upstream_status": self.status,
            "remove_when": self.remove_when,
        }  # fmt: skip

    def __str__(self) -> str:
        said = {
            PATCH: f"{self.name}: {self.subject}", OVERLAY: f"overlay/{self.name}",
            STAMP: "written by apply", EDIT: "an edit of this tree, in no patch",
        }[self.kind]  # fmt: skip
        parts = [said]
        parts += [f"Upstream-Status: {self.status}"] if self.status else []
        parts += [f"Remove-When: {self.remove_when}"] if self.remove_when else []
        return "; ".join(parts)


@dataclass(frozen=True)
class Origin:
    """Where a file's difference comes from: all of it, each hunk, and each run of changed lines of each hunk."""

    whole: tuple[Source, ...]
    runs: tuple[tuple[tuple[Source, ...], ...], ...]

    @property
    def hunks(self) -> tuple[tuple[Source, ...], ...]:
        return tuple(tuple(dict.fromkeys(source for run in hunk for source in run)) for hunk in self.runs)


def of_patch(patch: Patch) -> Source:
    header = patch.header
    status, remove = (header.get(name) for name in ("Upstream-Status", "Remove-When"))
    return Source(PATCH, patch.name, header.subject, status, remove)


def find(sides: Sides, files: Sequence[FileDiff]) -> dict[bytes, Origin]:
    """Of each file of the fork's side, by its path."""
    lines = _Lines(sides)
    return {file.path: lines.origin(file) for file in files}


@dataclass
class _Track:
    """A file that patches change: whose each line is (`_BASE` or the number of a patch), and who deleted which line of
    the base. `touched`: every patch with a section for it, in order."""

    lines: list[tuple[int, int]]  # (whose, the line of the base where it is its own)
    deleted: dict[int, int] = field(default_factory=dict)
    touched: list[int] = field(default_factory=list)

    def copy(self) -> _Track:
        return _Track(list(self.lines), dict(self.deleted), list(self.touched))

    def change(self, changes: Iterable[linediff.Change], who: int) -> None:
        made: list[tuple[int, int]] = []
        at = 0
        for change in changes:
            made += self.lines[at : change.old_start]
            for whose, line in self.lines[change.old_start : change.old_end]:
                if whose == _BASE:
                    self.deleted[line] = who
            made += [(who, -1)] * (change.new_end - change.new_start)
            at = change.old_end
        self.lines = [*made, *self.lines[at:]]
        self.touched.append(who)


class _Lines:
    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._sources = [of_patch(patch) for patch in sides.fork.patches]
        self._tracks = self._follow()
        edited = sides.store.effect(sides.made, sides.shown) if sides.shown != sides.made else {}
        self._edited = edited

    def _follow(self) -> Mapping[bytes, _Track]:
        """What the series makes of each file, patch by patch."""
        store, tracks = self._sides.store, dict[bytes, _Track]()
        for who, (patch, step) in enumerate(zip(self._sides.fork.patches, self._sides.patches, strict=True)):
            start, made = dict(tracks), dict[bytes, _Track]()
            for file in patch.files:
                old = file.old_path
                # A second section of a file sees the first one's result.
                track = made.get(old) if old is not None and file.kind == "modify" else None
                track = track or (start.get(old) if old is not None else None)
                if track is None:
                    data = store.data(store.get(step.before, old)) if old is not None else None
                    count = len(linediff.cut(data or b""))
                    track = _Track([(_BASE, line) for line in range(count)])
                track = track.copy()
                track.change((change for hunk in file.hunks for change in text.changes(hunk)), who)
                if file.kind in ("delete", "rename") and old is not None and old not in made:
                    tracks[old] = track
                made[file.new_path or old or b""] = track
            tracks.update(made)
        return tracks

    def origin(self, file: FileDiff) -> Origin:
        fork, path = self._sides.fork, file.path
        old = file.section.old_path
        track = self._tracks.get(path) or (self._tracks.get(old) if old is not None else None)
        edited = path in self._edited or old in self._edited
        if track is None or path in fork.added:
            whole = self._outright(path)
            if edited:
                whole = (*whole, Source(EDIT, "")) if path in fork.added else (Source(EDIT, ""),)
            return Origin(whole, tuple((whole,) for _ in file.section.hunks))
        if edited:
            track = self._with_edits(path, old, track)
        runs = tuple(tuple(self._run(c, track) for c in text.changes(hunk)) for hunk in file.section.hunks)
        return Origin(self._named(track.touched), runs)

    def _outright(self, path: bytes) -> tuple[Source, ...]:
        fork = self._sides.fork
        if path == forks.STAMP_PATH:
            return (Source(STAMP, ""),)
        shipped = fork.overlay.files.get(path)
        return (Source(OVERLAY, shipped.layer),) if shipped is not None else ()

    def _with_edits(self, path: bytes, old: bytes | None, track: _Track) -> _Track:
        store = self._sides.store
        was = store.data(store.get(self._sides.made, path) or (store.get(self._sides.made, old) if old else None))
        now = store.data(store.get(self._sides.shown, path))
        track = track.copy()
        track.change(linediff.changes(linediff.cut(was or b""), linediff.cut(now or b"")), _EDIT)
        return track

    def _run(self, change: linediff.Change, track: _Track) -> tuple[Source, ...]:
        who = [track.deleted[line] for line in range(change.old_start, change.old_end) if line in track.deleted]
        who += [whose for whose, _ in track.lines[change.new_start : change.new_end] if whose != _BASE]
        # Lines that git's diff shows as changed and no patch changed: a block that it slid. All that may have.
        return self._named(who or track.touched)

    def _named(self, who: Iterable[int]) -> tuple[Source, ...]:
        order = sorted(dict.fromkeys(who), key=lambda n: len(self._sources) if n == _EDIT else n)
        return tuple(Source(EDIT, "") if n == _EDIT else self._sources[n] for n in order)
