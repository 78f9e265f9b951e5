"""The hunks of a change without context, and what a merge made of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kunlunfork.patchfile import parse_patch
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.rebase.outcome import MERGED, MOVED, PARTLY, UNCHANGED, UPSTREAMED, HunkFate
from kunlunfork.rebase.treestore import Effect, TreeStore

_DIFF = (
    "diff-tree", "-r", "-p", "--full-index", "--unified=0", "--no-renames", "--diff-algorithm=myers",
    "--no-indent-heuristic", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/",
    "--inter-hunk-context=0", "--no-relative", "--binary",
)  # fmt: skip
_Key = tuple[bytes, tuple[Entry | None, Entry | None]]


@dataclass(frozen=True)
class Block:
    """Neighbouring lines that one change deletes and adds; `line` is the first deleted one, or the one after which
    lines are added. A change without lines (mode, binary, symbolic link) is one block without lines at line 0."""

    line: int
    deleted: tuple[bytes, ...] = ()
    added: tuple[bytes, ...] = ()


class Blocks:
    """Remembers what was compared before: most files do not change from one release to the next."""

    def __init__(self, store: TreeStore) -> None:
        self._store = store
        self._known: dict[_Key, tuple[Block, ...]] = {}

    def of(self, effect: Effect) -> dict[bytes, tuple[Block, ...]]:
        """The blocks of each path that `effect` names."""
        unknown = {p: pair for p, pair in effect.items() if (p, pair) not in self._known}
        if unknown:
            self._compare(unknown)
        return {path: self._known[path, pair] for path, pair in effect.items()}

    def _compare(self, effect: Effect) -> None:
        store = self._store
        empty = store.empty()
        before, after = (store.replace(empty, {p: pair[i] for p, pair in effect.items()}) for i in (0, 1))
        raw = store.repository.git(*_DIFF, before, after)
        found: dict[bytes, list[Block]] = {path: [] for path in effect}
        if raw:
            for file in parse_patch("a change", b"Subject: x\n\n---\n" + raw).files:
                path = file.new_path or file.old_path or b""
                for hunk in file.hunks:
                    lines = {sign: tuple(x[1:] for x in hunk.lines if x[:1] == sign) for sign in (b"-", b"+")}
                    found[path].append(Block(hunk.old_start, lines[b"-"], lines[b"+"]))
        for path, pair in effect.items():
            # A symbolic link has no lines that could move.
            whole = not found[path] or any(e is not None and e.mode == SYMLINK for e in pair)
            self._known[path, pair] = (Block(0),) if whole else tuple(found[path])


def fates(path: bytes, was: Sequence[Block], now: Sequence[Block]) -> list[HunkFate]:
    """What became of the blocks `was` of a patch, when on the new release it makes the blocks `now`."""
    left, right = ([(block.deleted, block.added) for block in side] for side in (was, now))
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    found: list[HunkFate] = []
    for what, a, a_end, b, b_end in matcher.get_opcodes():
        if what == "equal":
            for old, new in zip(was[a:a_end], now[b:b_end], strict=True):
                found.append(HunkFate(path, old.line, new.line, UNCHANGED if old.line == new.line else MOVED))
        elif what == "delete":
            found += [HunkFate(path, old.line, None, UPSTREAMED) for old in was[a:a_end]]
        elif what == "replace":
            still = [line for block in now[b:b_end] for line in block.added]
            for old in was[a:a_end]:
                # A hunk of which upstream has some lines by now leaves the others.
                part = bool(old.added) and _within(still, old.added) and len(still) < len(old.added)
                found.append(HunkFate(path, old.line, now[b].line, PARTLY if part else MERGED))
    return found


def _within(few: Sequence[bytes], many: Sequence[bytes]) -> bool:
    """Whether `few` are some of `many`, in order."""
    rest = iter(many)
    return all(line in rest for line in few)
