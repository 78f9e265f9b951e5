"""kunlunfork new-patch"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands._options import index_option, offline_option, repo_option, target_of, tree_options, verb
from kunlunfork.console import Console


@click.command("new-patch")
@tree_options
@click.option("--title", required=True, help="What the patch does, in one line: its subject, and its file's name.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to take.")
@repo_option
@index_option
@offline_option
@verb
def command(
    tree: Path | None, site_packages: bool, python: Path | None, title: str, check: bool, repo: Path | None,
    index_url: str | None, offline: bool, console: Console,
) -> int:  # fmt: skip
    """Make a patch of the edits in a fork tree, at the end of the series.

    \b
    kunlunfork new-patch --title "Take the slot mapping from the host"

    For trees without git. All edits of upstream's files become one patch; edited and new files of the fork's own go
    into the overlay. The tree stays as it is, and its record says that it carries the patch.
    """
    from kunlunfork import cache, gittree, messages, plain
    from kunlunfork.commands._export import clone_for, finish
    from kunlunfork.errors import ForkError
    from kunlunfork.sources.base import Settings, release
    from kunlunfork.store import Store

    target = target_of(tree, site_packages, python)
    if gittree.is_git_tree(target.root):
        raise ForkError(
            f"{target.root} is a git tree", expected="a tree without git",
            fix="git commit makes the patch there; then kunlunfork export",
        )  # fmt: skip
    fork = clone_for(console, repo, target.root)
    folders = cache.default()
    store = Store(folders.store)
    base = release(fork.pin(plain.version(target)), store, Settings(folders, index_url, offline, console))
    planned = plain.plan(fork, target, store, base, messages.now(title))
    return finish(fork, planned, check, console, lambda: plain.carry_out(fork, target, store, planned, console))
