"""kunlunfork revert"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork import paths
from kunlunfork.commands._options import dry_run_option, target_of, tree_options, verb
from kunlunfork.console import Console


@click.command("revert")
@tree_options
@dry_run_option
@verb
def command(tree: Path | None, site_packages: bool, python: Path | None, dry_run: bool, console: Console) -> None:
    """Take the fork off TREE: bytes, modes and absence as before.

    TREE is the fork tree you are in, if it is not named. Edits that were made since are never lost: the command
    refuses and lists them.

    \b
    kunlunfork revert                     the fork tree that you are in
    kunlunfork revert --dry-run TREE      what would be put back and removed
    kunlunfork revert --site-packages     the vLLM installed in this interpreter
    """
    from kunlunfork import cache
    from kunlunfork.apply import revert
    from kunlunfork.store import Store

    # Needed only where a pre-image is lost; not made for that.
    folder = cache.default().store
    store = Store(folder) if folder.is_dir() else None
    outcome = revert(target_of(tree, site_packages, python), dry_run=dry_run, progress=console, store=store)
    result = {
        "action": outcome.action,
        "dry_run": dry_run,
        "tree": str(outcome.root),
        "version": outcome.version,
        "restored": [paths.to_text(p) for p in outcome.written],
        "removed": [paths.to_text(p) for p in outcome.removed],
        "recovered": outcome.recovered,
    }
    would = "would be " if dry_run else ""
    console.result(
        result,
        lambda: print(
            f"{outcome.root}: {would}vLLM {outcome.version} as released again "
            f"({len(outcome.written)} files restored, {len(outcome.removed)} removed)"
        ),
    )
