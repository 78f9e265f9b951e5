"""kunlunfork new-patch"""

from __future__ import annotations

import re
from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console


def _title(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """A subject that makes a patch of its own; `fixup!` would join another."""
    title = " ".join(value.split())
    if not title or not title.isprintable() or re.match(r"(fixup|squash|amend)!", title):
        raise click.BadParameter("say in a line of text what the patch does")
    return title


@click.command("new-patch")
@click.argument("tree", type=FOLDER, required=False)
@click.option(
    "--title",
    required=True,
    callback=_title,
    help="What the patch does, in one line: its subject, and its file's name.",
)
@click.option("--add", multiple=True, metavar="PATH", help="A new file that goes into the overlay, relative to TREE.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to take.")
@repo_option
@index_option
@offline_option
@verb
def command(
    tree: Path | None, title: str, add: tuple[str, ...], check: bool, repo: Path | None, index_url: str | None,
    offline: bool, console: Console,
) -> int:  # fmt: skip
    """Make a patch of the edits in a fork tree, at the end of the series.

    \b
    kunlunfork new-patch --title "Take the slot mapping from the host"

    For source trees without git, as apply --vllm makes them. All edits of upstream's files become one patch; edited
    files of the overlay go into the overlay, new files where --add names them. The tree stays as it is, and its record
    says that it carries the patch: revert gives the release.
    """
    from kunlunfork import cache, messages, plain
    from kunlunfork import target as targets
    from kunlunfork.commands._export import clone_for, finish
    from kunlunfork.errors import ForkError
    from kunlunfork.sources.base import Settings
    from kunlunfork.sources.tree import has_git_state
    from kunlunfork.store import Store

    target = targets.find(tree)
    if has_git_state(target.root):
        raise ForkError(
            f"{target.root} is a git tree", expected="a tree without git",
            fix="git commit makes the patch there; then kunlunfork export",
        )  # fmt: skip
    fork = clone_for(console, repo, target.root)
    folders = cache.default()
    store = Store(folders.store)
    settings = Settings(folders, index_url, offline, console)
    base = plain.base_of(target, fork.pin(plain.version(target)), store, settings)
    taking = plain.plan(fork, target, store, base, messages.now(title), add)
    return finish(fork, taking.plan, check, console, lambda: plain.carry_out(fork, target, store, taking, console))
