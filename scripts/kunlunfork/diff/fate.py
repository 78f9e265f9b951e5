"""What becomes of the fork's patches on a newer mainline, hunk by hunk, and which of them nobody needs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunlunfork import paths
from kunlunfork.diff.sides import Sides
from kunlunfork.patchfile import Patch
from kunlunfork.rebase import engine, outcome, resolutions
from kunlunfork.rebase.blocks import Block, Blocks
from kunlunfork.rebase.carry import Change, Resolution
from kunlunfork.rebase.engine import Rung
from kunlunfork.rebase.outcome import Conflict, Outcome
from kunlunfork.rebase.treestore import TreeStore

DROPPABLE = (outcome.UPSTREAMED, outcome.PARTLY)


@dataclass(frozen=True)
class Fate:
    """One hunk (without context) of one patch on the way to a newer release.

    `line` is where it stands in the file that its patch was made from, as numbered there (see `Block`); `kind` as in
    `rebase.outcome`. `version` is the release that decided, `new_line` where it stands in the last one. `proof` says
    how one can see that upstream has it, or why a person must look.
    """

    patch: str
    path: bytes
    line: int
    kind: str
    version: str
    new_line: int | None = None
    proof: tuple[str, ...] = ()

    @property
    def droppable(self) -> bool:
        return self.kind == outcome.UPSTREAMED

    def __str__(self) -> str:
        where = f"{self.patch}, line {self.line}"
        why = f" ({'; '.join(self.proof)})" if self.proof else ""
        if self.kind == outcome.UPSTREAMED:
            return f"droppable: {where}: vLLM {self.version} has it{why}"
        if self.kind == outcome.PARTLY:
            return f"partly droppable: {where}: vLLM {self.version} has some of it{why}"
        if self.kind == outcome.CONFLICT:
            return f"needs a person: {where}: conflict in vLLM {self.version}{why}"
        return f"{where}: still needed in vLLM {self.version}, at line {self.new_line} there"

    def as_json(self) -> dict[str, Any]:
        return {
            "patch": self.patch, "path": paths.to_text(self.path), "line": self.line, "outcome": self.kind,
            "droppable": self.droppable, "version": self.version, "new_line": self.new_line, "proof": list(self.proof),
        }  # fmt: skip


def find(sides: Sides, rungs: Sequence[Rung], wanted: frozenset[bytes]) -> tuple[Fate, ...]:
    """Carry the patches that change `wanted` files (and those that they build on) up to the last of `rungs`.

    Raises:
        ForkError: git fails.
    """
    patches = {patch.name: patch for patch in sides.fork.patches}
    names = _closed(sides.fork.patches, wanted)
    changes = [change for change in sides.patches if change.name in names]
    if not changes or not rungs:
        return ()
    first = Rung(sides.fork.pin.version, sides.base)

    def known(conflict: Conflict) -> Resolution | None:
        found = sides.known.get(conflict.key)
        return None if found is None else resolutions.replay(sides.store, conflict, found)

    run = engine.run(sides.store, first, changes, rungs, known=known, skipped={})
    blocks = Blocks(sides.store)
    found: list[Fate] = []
    for change in changes:
        steps = [step for step in run.outcomes if step.patch == change.name]
        fates = _chain(sides.store, blocks, change, steps, {rung.version: rung.tree for rung in rungs})
        found += [fate for fate in fates if fate.path in wanted or _paths(patches[change.name]) & wanted]
    return tuple(found)


def _paths(patch: Patch) -> frozenset[bytes]:
    return frozenset(p for file in patch.files for p in (file.old_path, file.new_path) if p is not None)


def _closed(patches: Sequence[Patch], wanted: frozenset[bytes]) -> frozenset[str]:
    """The patches of these files, and of every file that those share with others."""
    files, names = set(wanted), set[str]()
    while True:
        more = {patch.name for patch in patches if _paths(patch) & files} - names
        if not more:
            return frozenset(names)
        names |= more
        files |= {path for patch in patches if patch.name in names for path in _paths(patch)}


def _chain(
    store: TreeStore, blocks: Blocks, change: Change, steps: Sequence[Outcome], trees: Mapping[str, str]
) -> list[Fate]:
    """Follow each hunk from step to step until one decides on it."""
    start = blocks.of(store.effect(change.before, change.after))
    open_ = {(path, block.line): (path, block) for path, found in start.items() for block in found}
    ended: list[Fate] = []
    for step in steps:
        moved = dict(step.moves)
        after: dict[tuple[bytes, int], tuple[bytes, Block]] = {}
        why = tuple(f"{paths.show(c.path)}: {c.kind}: {c.why}" for c in step.conflicts)
        whole = step.kind == outcome.UPSTREAMED
        for fate in step.hunks:
            origin = open_.get((fate.path, fate.line)) or next(
                (open_[old, fate.line] for old, new in moved.items() if new == fate.path and (old, fate.line) in open_),
                None,
            )
            if origin is None:
                continue
            path, block = origin
            kind = outcome.UPSTREAMED if whole else fate.kind
            if kind in (outcome.UPSTREAMED, outcome.PARTLY, outcome.CONFLICT):
                proof = why if kind == outcome.CONFLICT else _proof(store, trees[step.version], fate.path, block, step)
                ended.append(Fate(change.name, path, block.line, kind, step.version, None, proof))
            elif fate.new_line is not None:
                after[fate.path, fate.new_line] = origin
        if whole and not step.hunks:
            ended += [
                Fate(change.name, path, block.line, outcome.UPSTREAMED, step.version, None, step.proof)
                for path, block in open_.values()
            ]
            after = {}
        open_ = after
    last = steps[-1].version if steps else ""
    ended += [Fate(change.name, p, b.line, outcome.UNCHANGED, last, at[1]) for at, (p, b) in open_.items()]
    return sorted(ended, key=lambda fate: (fate.path, fate.line))


def _proof(store: TreeStore, tree: str, path: bytes, block: Block, step: Outcome) -> tuple[str, ...]:
    """Where upstream has the added lines, or that it has no more the deleted ones."""
    data = store.data(store.get(tree, path)) or b""
    lines = data.split(b"\n")
    shown = paths.show(path)
    if block.added:
        size = len(block.added)
        for at in range(len(lines) - size + 1):
            if tuple(lines[at : at + size]) == block.added:
                return (f"{shown}:{at + 1} in vLLM {step.version} has the same {_lines(size)}",)
    elif block.deleted and not any(
        tuple(lines[at : at + len(block.deleted)]) == block.deleted for at in range(len(lines))
    ):
        return (f"{shown} in vLLM {step.version} has the {_lines(len(block.deleted))} no more",)
    return step.proof


def _lines(count: int) -> str:
    return "line" if count == 1 else f"{count} lines"
