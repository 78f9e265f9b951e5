"""The text of a difference: git's own diff of two trees, split into files and hunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kunlunfork.hunks import Hunk
from kunlunfork.patchfile import parse_patch
from kunlunfork.patchsection import FilePatch
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.treestore import Effect, TreeStore

# Lines around a change, as git shows them unasked.
CONTEXT = 3
_DIFF = (
    "diff-tree", "-r", "-p", "--full-index", "--binary", "--find-renames=50%", "--no-rename-empty", "-l0",
    "--diff-algorithm=myers", "--indent-heuristic", "--no-color", "--no-ext-diff", "--no-textconv",
    "--src-prefix=a/", "--dst-prefix=b/", "--inter-hunk-context=0", "--ignore-submodules=none", "--no-relative",
)  # fmt: skip
_HEAD = b"Subject: x\n\n---\n"


@dataclass(frozen=True)
class FileDiff:
    """One file: what git says of it (`raw`, bytes that `git apply` takes) and the same understood."""

    section: FilePatch
    raw: bytes

    @property
    def path(self) -> bytes:
        """Where it is now; where it was, if it is gone."""
        return self.section.new_path or self.section.old_path or b""

    @property
    def added(self) -> int:
        return sum(line[:1] == b"+" for hunk in self.section.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        return sum(line[:1] == b"-" for hunk in self.section.hunks for line in hunk.lines)


def compare(store: TreeStore, effect: Effect, context: int = CONTEXT) -> tuple[FileDiff, ...]:
    """The difference that `effect` is, in the order of the paths; renames among its files are found.

    Raises:
        ForkError: git fails.
    """
    if not effect:
        return ()
    empty = store.empty()
    before, after = (store.replace(empty, {path: pair[side] for path, pair in effect.items()}) for side in (0, 1))
    raw = store.repository.git(*_DIFF, f"--unified={context}", before, after)
    if not raw:
        return ()
    patch = parse_patch("the difference", _HEAD + raw)
    return tuple(FileDiff(file, patch.raw[file.start : file.end]) for file in patch.files)


def patch(files: tuple[FileDiff, ...]) -> bytes:
    """What `git apply` takes; nothing where nothing differs."""
    return b"".join(file.raw for file in files)


def changes(hunk: Hunk) -> Iterator[Change]:
    """The runs of changed lines of a hunk; lines count from 0 in either file, ends are exclusive."""
    old, new = hunk.old_before, hunk.new_before
    old_start, new_start = old, new
    for line in hunk.lines:
        sign = line[:1]
        if sign == b" ":
            if (old, new) != (old_start, new_start):
                yield Change(old_start, old, new_start, new)
            old, new = old + 1, new + 1
            old_start, new_start = old, new
        else:
            old += sign == b"-"
            new += sign == b"+"
    if (old, new) != (old_start, new_start):
        yield Change(old_start, old, new_start, new)


def renamed(files: Sequence[FileDiff]) -> dict[bytes, bytes]:
    """Old path -> new path of the files that were renamed and have more than a licence in common."""
    sections = [file.section for file in files]
    return {s.old_path: s.new_path for s in sections if s.kind == "rename" and s.old_path and s.new_path and s.hunks}
