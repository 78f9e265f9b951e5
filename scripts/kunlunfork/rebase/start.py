"""A series as trees on the release that it was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch
from kunlunfork.paths import show
from kunlunfork.pins import Pin
from kunlunfork.rebase.carry import Change
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.stages import Files, named, stages

_FULL = 40


def changes(store: TreeStore, tree: str, pin: Pin, patches: Sequence[Patch]) -> tuple[Change, ...]:
    """Apply a series to the release `tree`, byte for byte.

    Raises:
        ForkError: a patch does not fit the files that the ones before it leave.
    """
    comparable = [_comparable(patch) for patch in patches]
    base: Files = {}
    for path in named(comparable):
        entry = store.get(tree, path)
        base[path] = None if entry is None else (entry, store.blob(entry.blob))
    found = stages(comparable, base)
    now = tree
    made = []
    for patch, was, becomes in zip(patches, found[:-1], found[1:], strict=True):
        files = {p: becomes[p][0] if p in becomes else None for p in {*was, *becomes}}
        for path, (entry, data) in becomes.items():
            if was.get(path, (None,))[0] != entry:
                store.put(data)
        after = store.replace(now, files)
        _check_short_ids(patch, {p: e for p, e in files.items() if e is not None})
        made.append(Change(patch.name, now, after))
        now = after
    return tuple(made)


def _comparable(patch: Patch) -> Patch:
    """A patch of someone else may have short blob ids; they are compared here, and only whole ones there."""
    files = tuple(replace(f, new_blob=None) if f.new_blob and len(f.new_blob) < _FULL else f for f in patch.files)
    return replace(patch, files=files)


def _check_short_ids(patch: Patch, files: dict[bytes, object]) -> None:
    last = {file.new_path: file for file in patch.files}  # a file may have two sections
    for file in last.values():
        if file.new_blob is None or len(file.new_blob) >= _FULL or file.new_path is None:
            continue
        blob = str(getattr(files.get(file.new_path), "blob", ""))
        if not blob.startswith(file.new_blob):
            raise ForkError(
                f"{patch.name} gives another {show(file.new_path)} than it says", found=f"blob {blob or 'none'}",
                expected=f"blob {file.new_blob}",
            )  # fmt: skip
