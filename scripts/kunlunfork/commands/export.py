"""kunlunfork export"""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console
from kunlunfork.errors import ForkError


@click.command("export")
@click.argument("tree", type=FOLDER, required=False)
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if an export would.")
@click.option(
    "--include-worktree", is_flag=True, help="Take edits that are not committed into the patch of their file."
)
@click.option("--own-layer", is_flag=True, help="Edits of files of an older overlay go into the pin's own overlay.")
@repo_option
@verb
def command(
    tree: Path | None, check: bool, include_worktree: bool, own_layer: bool, repo: Path | None, console: Console
) -> int:
    """Bring the commits of a git tree back into patches/ and overlay/.

    \b
    kunlunfork apply --vllm 0.25.1 --git TREE     one commit a patch, one for the overlay
    cd TREE; git commit ...; git rebase -i ...    change, reorder, split, drop, fixup!
    kunlunfork export                             the patches follow; what did not change stays byte for byte

    TREE is the git tree you are in, if it is not named. A commit of yours without the line Kunlunfork-Patch becomes a
    new patch named after its subject. Files that upstream does not have go to the overlay.
    """
    from kunlunfork import export
    from kunlunfork.commands._export import clone_for, finish, git_tree, temporary_files

    root = git_tree(tree)
    fork = clone_for(console, repo, root)
    with temporary_files():
        planned = export.plan(fork, root, include_worktree=include_worktree, own_layer=own_layer)
    if not check and not planned.writes:
        with contextlib.suppress(ForkError, OSError):
            export.remember(fork, root, planned)
    return finish(fork, planned, check, console, lambda: export.carry_out(fork, root, planned))
