"""kunlunfork status"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kunlunfork.commands._options import content_for, repo_option, target_of, tree_options, verb
from kunlunfork.console import Console, rows


@click.command("status")
@tree_options
@repo_option
@verb
def command(tree: Path | None, site_packages: bool, python: Path | None, repo: Path | None, console: Console) -> None:
    """Say what state TREE is in: upstream, applied, edited, interrupted or leftover.

    \b
    kunlunfork status TREE
    kunlunfork status --site-packages --python /opt/vllm/bin/python
    """
    from kunlunfork import status

    tree_found = target_of(tree, site_packages, python)
    found = status.read(tree_found, content_for(console, repo, tree_found.root))
    console.result(result(found), lambda: show(found))


def result(found: Any) -> dict[str, Any]:
    lock = found.lock
    return {
        "tree": str(found.root),
        "state": found.state,
        "kind": found.kind,
        "version": found.version,
        "pin": lock.version if lock else None,
        "patches": [name for name, _ in lock.patches] if lock else [],
        "files": len(lock.files) if lock else 0,
        "series_hash": lock.series_hash if lock else None,
        "overlay_hash": lock.overlay_hash if lock else None,
        "current": found.current,
        "edits": list(found.edits),
        "exported": list(found.exported),
        "interrupted": found.interrupted,
        "fix": found.fix,
    }


def show(found: Any) -> None:
    pairs = [
        ("tree", str(found.root)),
        ("state", found.state),
        ("vllm", f"{found.version or 'unknown'} ({found.kind})"),
    ]
    if found.lock is not None:
        age = {True: "up to date", False: "older than this kunlunfork's", None: "pin unknown here"}[found.current]
        pairs.append(
            (
                "fork",
                f"{found.lock.version}, {len(found.lock.patches)} patches, {len(found.lock.files)} files, {age}",
            )
        )
    if found.interrupted:
        pairs.append(("interrupted", found.interrupted))
    rows(pairs)
    for edit in found.edits:
        print(f"  {edit}")
    for edit in found.exported:
        print(f"  {edit}, and the clone has it")
    if found.fix:
        print(f"fix: {found.fix}")
