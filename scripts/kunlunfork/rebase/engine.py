"""A series up the ladder of releases, patch by patch; what stops one patch does not stop the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kunlunfork.rebase.blocks import Blocks
from kunlunfork.rebase.carry import Carrier, Change, Known
from kunlunfork.rebase.outcome import CONFLICT, SKIPPED, UPSTREAMED, Outcome
from kunlunfork.rebase.treestore import TreeStore


@dataclass(frozen=True)
class Rung:
    """A release on the way: its version, its tree, and what is known of where files of the one before went."""

    version: str
    tree: str
    renames: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """The first patch that a person must look at: where, and the tree that it goes onto with what could be merged."""

    rung: Rung
    before: Rung
    change: Change
    outcome: Outcome
    now: str
    partial: str


@dataclass(frozen=True)
class Run:
    """`outcomes` in the order in which patches were carried; `changes` are the patches on the last release.

    Where there is a `stop`, the rest was tried without that patch, to be shown.
    """

    outcomes: tuple[Outcome, ...]
    changes: tuple[Change, ...]
    stop: Stop | None


def run(
    store: TreeStore, start: Rung, changes: Sequence[Change], rungs: Sequence[Rung], *, known: Known,
    skipped: Mapping[str, str],
) -> Run:  # fmt: skip
    """Carry a series from the release `start` through `rungs`.

    Args:
        changes: the patches on `start`, in order.
        known: gives the resolution of a conflict, where there is one.
        skipped: patches that are left out: name -> the version at which they were in conflict.

    Raises:
        ForkError: git fails.
    """
    made = Blocks(store)
    outcomes: list[Outcome] = []
    stop: Stop | None = None
    before = start
    for rung in rungs:
        carrier = Carrier(store, made, before.tree, rung.tree, rung.version, rung.renames, known)
        now = rung.tree
        carried: list[Change] = []
        for change in changes:
            if skipped.get(change.name) == rung.version:
                outcomes.append(Outcome(change.name, rung.version, SKIPPED))
                continue
            result = carrier.carry(change, now)
            outcomes.append(result.outcome)
            if result.outcome.kind == CONFLICT:
                if stop is None:
                    stop = Stop(rung, before, change, result.outcome, now, result.tree)
            elif result.outcome.kind != UPSTREAMED:
                carried.append(Change(change.name, now, result.tree))
                now = result.tree
        changes, before = carried, rung
    return Run(tuple(outcomes), tuple(changes), stop)
