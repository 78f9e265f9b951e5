"""Where the fork and a newer mainline change the same lines of the release between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kunlunfork.diff import text
from kunlunfork.diff.text import FileDiff
from kunlunfork.rebase.linediff import Change


@dataclass(frozen=True)
class Met:
    """A file of the base. `hunks` are the fork's hunks of it (by place) that mainline changed lines in or beside.

    `gone`: mainline deleted or renamed it.
    """

    ours: FileDiff | None
    theirs: FileDiff | None
    hunks: tuple[int, ...]
    gone: str | None

    @property
    def path(self) -> bytes:
        one = self.ours or self.theirs
        assert one is not None
        return one.section.old_path or one.path


def meet(ours: Sequence[FileDiff], theirs: Sequence[FileDiff]) -> tuple[Met, ...]:
    """Both sides of each file, in the order of the paths that the base has."""
    mine, other = _by_base(ours), _by_base(theirs)
    return tuple(_met(mine.get(path), other.get(path)) for path in sorted({*mine, *other}))


def _by_base(files: Iterable[FileDiff]) -> Mapping[bytes, FileDiff]:
    return {file.section.old_path or file.path: file for file in files}


def _met(ours: FileDiff | None, theirs: FileDiff | None) -> Met:
    if ours is None or theirs is None:
        return Met(ours, theirs, (), None)
    kind = theirs.section.kind
    gone = kind if kind in ("delete", "rename") else None
    if ours.section.old_path is None or kind == "delete":
        return Met(ours, theirs, tuple(range(len(ours.section.hunks))), gone)
    changed = [change for hunk in theirs.section.hunks for change in text.changes(hunk)]
    hunks = tuple(
        at
        for at, hunk in enumerate(ours.section.hunks)
        if any(_touch(mine, other) for mine in text.changes(hunk) for other in changed)
    )
    return Met(ours, theirs, hunks, gone)


def _touch(a: Change, b: Change) -> bool:
    """Whether two changes of one file have lines in common, or lie side by side, as a merge of git's sees it."""
    return a.old_start <= b.old_end and b.old_start <= a.old_end
