"""One three-way merge of trees by git, with the base that we say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kunlunfork.git import GitFailed
from kunlunfork.paths import Entry, parents
from kunlunfork.rebase.treestore import TreeStore

BASE, OURS, THEIRS = 1, 2, 3

_SETTINGS = ("-c", "merge.renames=false", "-c", "merge.directoryRenames=false", "-c", "merge.conflictStyle=merge",
             "-c", "merge.renormalize=false")  # fmt: skip


@dataclass(frozen=True)
class Merged:
    """A merged tree.

    `stages` has the paths that conflict: stage (1 base, 2 ours, 3 theirs) -> entry; `kinds` what git calls the
    conflicts of a path, such as `CONFLICT (file/directory)`.
    """

    tree: str
    stages: Mapping[bytes, Mapping[int, Entry]]
    kinds: Mapping[bytes, tuple[str, ...]]


def restricted(store: TreeStore, tree: str, paths: Iterable[bytes]) -> str:
    """A tree of these files alone, and of what is in their place: a file of a folder, or a file for a folder.

    Git 2.39 infers renames whatever `merge.renames` says. Renames are settled before (`align`), so it sees no file that
    it could take for another.
    """
    kept: dict[bytes, Entry | None] = {}
    for path in paths:
        entry = store.get(tree, path)
        if entry is not None:
            kept[path] = entry
        elif store.is_folder(tree, path):
            kept |= [next(store.below(tree, path))]
        else:
            kept |= {above: found for above in parents(path) if (found := store.get(tree, above)) is not None}
    return store.replace(store.empty(), kept)


def trees(store: TreeStore, base: str, ours: str, theirs: str) -> Merged:
    """What `theirs` did to `base`, done to `ours`; of trees that `restricted` made.

    Raises:
        ForkError: git fails, other than with a conflict.
    """
    if base == ours:
        return Merged(theirs, {}, {})
    if base == theirs or ours == theirs:
        return Merged(ours, {}, {})
    # `--merge-base` is newer than the oldest git that must do; a common parent says the same.
    root = store.commit(base)
    args = (*_SETTINGS, "merge-tree", "--write-tree", "-z", "--messages", store.commit(ours, root),
            store.commit(theirs, root))  # fmt: skip
    try:
        raw = store.repository.git(*args)
    except GitFailed as e:
        if e.returncode != 1:
            raise
        raw = e.stdout
    return _parse(raw)


def _parse(raw: bytes) -> Merged:
    tree, _, rest = raw.partition(b"\0")
    stages: dict[bytes, dict[int, Entry]] = {}
    while rest and not rest.startswith(b"\0"):
        row, _, rest = rest.partition(b"\0")
        meta, _, path = row.partition(b"\t")
        mode, blob, stage = meta.split()
        stages.setdefault(path, {})[int(stage)] = Entry(int(mode, 8), blob.decode())
    parts = iter(rest[1:].split(b"\0")[:-1])
    kinds: dict[bytes, list[str]] = {}
    for count in parts:
        named = [next(parts) for _ in range(int(count))]
        kind = next(parts).decode(errors="replace")
        next(parts)  # the message, which is for people
        if kind.startswith("CONFLICT"):
            for path in named:
                kinds.setdefault(path, []).append(kind)
    return Merged(tree.decode(), stages, {path: tuple(found) for path, found in kinds.items()})
