"""Which tree a command is about."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import statefolder
from kunlunfork.errors import ForkError
from kunlunfork.journal import PLAIN_STATE
from kunlunfork.sources import tree as trees
from kunlunfork.sources.tree import TreeInfo


@dataclass(frozen=True)
class Target:
    """A tree and its state folder (which need not exist)."""

    root: Path
    state: Path
    info: TreeInfo


def _states(folder: Path) -> list[Path]:
    try:
        installed = sorted(folder.glob("*.dist-info/kunlunfork"))
    except PermissionError:  # whoever names the tree is told; on the way up from the current folder it is just passed
        installed = []
    return [folder / PLAIN_STATE, trees.git_state(folder), *installed]


def is_fork(folder: Path) -> bool:
    """Whether a tree carries the fork, or something that a killed command left of it."""
    return any(os.path.lexists(state) for state in _states(folder))


def _of(info: TreeInfo) -> Target:
    state = trees.state_dir(info)
    statefolder.check(state)
    return Target(info.root, state, info)


def of_tree(folder: Path) -> Target:
    """The tree in exactly this folder (raises `ForkError` where it is no vLLM tree)."""
    found = _of(trees.read_tree(folder))
    if os.path.lexists(found.root / ".git") and not found.state.is_dir():
        from kunlunfork import gittree  # only for checkouts

        if (said := gittree.kin(found.root)) is not None:
            raise said
    return found


def installed(python: Path | None) -> Target:
    """The vLLM of an interpreter; None is the one that runs."""
    from kunlunfork.sources.site_packages import find_installed  # half of all start-up, for those who need it

    return _of(find_installed(python))


def find(tree: Path | None) -> Target:
    """The tree that is named, else the nearest fork tree from the current folder upwards.

    Raises:
        ForkError: there is none.
    """
    if tree is not None:
        return of_tree(tree)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_fork(folder):
            return of_tree(folder)
    raise ForkError(
        f"{here} is not in a fork tree",
        found="no lock in this folder or above it",
        expected="a tree that kunlunfork apply made",
        fix="name it: kunlunfork status TREE, or --site-packages",
    )
