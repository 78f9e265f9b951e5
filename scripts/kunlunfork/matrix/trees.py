"""Trees made from an engine environment's vLLM: the environment's own stays upstream's, a copy gets the fork."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kunlunfork import target
from kunlunfork.apply import Outcome, apply_in_place
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.matrix.environment import Engine
from kunlunfork.progress import Progress
from kunlunfork.sources.tree import read_tree
from kunlunfork.store import Store


def fork_tree(content: Content, engine: Engine, store: Store, version: str, progress: Progress) -> Outcome:
    """A folder with `vllm/` and its dist-info that carries the fork, to be put on PYTHONPATH before the environment.

    Made once; after that the lock brings it up to date with the content. One that somebody edited is made anew.

    Raises:
        ForkError: the fork does not fit, or the content is not valid.
    """
    folder = engine.root / "trees" / "fork"
    if not folder.is_dir():
        _copy(engine, folder)
    try:
        return _apply(content, folder, store, version, progress)
    except ForkError as e:
        if e.exit_code != CONFLICT:
            raise
        progress.note(f"{folder} was edited; making it again")
    shutil.rmtree(folder)
    _copy(engine, folder)
    return _apply(content, folder, store, version, progress)


def _apply(content: Content, folder: Path, store: Store, version: str, progress: Progress) -> Outcome:
    return apply_in_place(content, target.of_tree(folder), store, wanted=version, dry_run=False, progress=progress)


def _copy(engine: Engine, folder: Path) -> None:
    """Copy the installed vLLM: only ever whole, since the folder gets its name last."""
    info = read_tree(engine.site_packages)
    assert info.dist_info is not None
    temporary = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for source in (engine.site_packages / "vllm", info.dist_info):
        # A fork tree's own state belongs to that tree alone.
        ignore = shutil.ignore_patterns("__pycache__", "kunlunfork" if source == info.dist_info else "__pycache__")
        shutil.copytree(source, temporary / source.name, symlinks=True, copy_function=_take, ignore=ignore)
    temporary.rename(folder)


def _take(source: str, target: str) -> str:
    # Hundreds of megabytes that nobody edits; everything else is a file of its own.
    if source.endswith(".so"):
        try:
            os.link(source, target)
            return target
        except OSError:
            pass  # another file system
    return shutil.copy2(source, target)
