"""kunlunfork verify"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork import errors
from kunlunfork.commands._options import content_for, repo_option, target_of, tree_options, verb
from kunlunfork.commands.status import result
from kunlunfork.console import Console, describe, say
from kunlunfork.errors import ForkError


@click.command("verify")
@tree_options
@repo_option
@verb
def command(tree: Path | None, site_packages: bool, python: Path | None, repo: Path | None, console: Console) -> int:
    """Compare every file that the fork changed with the lock, byte for byte.

    Pre-images and RECORD are read too. Where the store has the release, all other files are compared with it, and what
    differs is a warning. Exit code 1 if the fork is not whole.

    \b
    kunlunfork verify TREE
    kunlunfork verify --site-packages --json      for a script: problems and others, as lists
    """
    from kunlunfork import cache, status
    from kunlunfork.store import Store

    found = target_of(tree, site_packages, python)
    fork = content_for(console, repo, found.root)
    upstream = None
    try:
        upstream = status.upstream_of(found, Store(cache.default().store), fork)
    except ForkError as e:
        console.warn(f"not compared with the release: {e.message}; {e.fix or e.found}")
    verdict = status.verify(found, fork, upstream)
    for other in verdict.others[:20]:
        console.warn(f"not as released: {other}")
    if len(verdict.others) > 20:
        console.warn(f"and {len(verdict.others) - 20} more files are not as released")
    body = {
        **result(verdict.status), "problems": list(verdict.problems), "others": list(verdict.others),
        "compared": verdict.compared,
    }  # fmt: skip
    if verdict.problems:
        error = ForkError(
            f"{found.root} is not the fork that was applied",
            details=verdict.problems,
            fix=verdict.fix,
        )
        console.refused(body, error, lambda: say(describe(error)))
        return error.exit_code
    console.result(body, lambda: print(f"{found.root}: {verdict.compared} files compared, the fork is whole"))
    return errors.OK
