"""kunlunfork rebase"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, dry_run_option, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console


@click.command("rebase")
@click.option("--onto", metavar="VERSION|git:PATH@REV", help="The release, or the commit of a clone of vLLM.")
@click.option("--from", "start", metavar="VERSION", help="The pin to carry [default: the newest one below].")
@click.option("--leap", is_flag=True, help="In one step, not release by release.")
@click.option(
    "--rename", "renames", multiple=True, metavar="OLD=NEW",
    help="Where a file or folder/ went; PATH::OLD=NEW: what a class or function is called now. Repeatable.",
)  # fmt: skip
@click.option("--continue", "go_on", is_flag=True, help="The conflict is resolved: go on.")
@click.option("--skip", is_flag=True, help="Leave the patch in conflict out of the series.")
@click.option("--why", default="", help="With --skip: the reason, written into the series.")
@click.option("--abort", is_flag=True, help="Take everything back.")
@click.option("--status", is_flag=True, help="Say where the rebase is.")
@click.option("--series", type=FOLDER, help="Another series: a folder with a file `series` and its patches.")
@click.option("--out", type=FOLDER, help="Write the result into this folder, not into the clone.")
@repo_option
@index_option
@offline_option
@dry_run_option
@verb
def command(
    onto: str | None, start: str | None, leap: bool, renames: tuple[str, ...], go_on: bool, skip: bool, why: str,
    abort: bool, status: bool, series: Path | None, out: Path | None, repo: Path | None, index_url: str | None,
    offline: bool, dry_run: bool, console: Console,
) -> int:  # fmt: skip
    """Carry the series to another release.

    \b
    kunlunfork rebase --onto 0.29.0                      from the newest pin below it, release by release
    kunlunfork rebase --onto 0.29.0 --dry-run            say what would become of each patch
    kunlunfork rebase --onto git:../vllm@main            the same for a main that is not released yet
    kunlunfork rebase --continue                         after a conflict; or --skip, --abort, --status
    kunlunfork rebase --series DIR --from 0.25.1 --onto 0.33.0 --out DIR

    A patch that conflicts stops the rebase, and the others are tried and shown. Nothing of the clone changes before
    the rebase is whole. Exit code 3, too, where the text fits and something that the fork relies on is another now
    (see kunlunfork drift).
    """
    from kunlunfork import cache
    from kunlunfork.commands import _rebase
    from kunlunfork.contracts.run import Workshop
    from kunlunfork.rebase.driver import Driver
    from kunlunfork.rebase.report import Request
    from kunlunfork.sources.base import Settings
    from kunlunfork.store import Store

    actions = [name for name, on in (("continue", go_on), ("skip", skip), ("abort", abort), ("status", status)) if on]
    if len(actions) + (onto is not None) != 1:
        raise click.UsageError("say one of --onto VERSION, --continue, --skip, --abort, --status")
    if actions and (start or leap or renames or series or dry_run):
        raise click.UsageError(f"--{actions[0]} goes on with what was asked for; it takes no other options but --out")
    if why and not skip:
        raise click.UsageError("--why goes with --skip")
    fork = console.find_content(repo)
    folders = cache.default()
    store, settings = Store(folders.store), Settings(folders, index_url, offline, console)
    driver, shop = Driver(fork, store, settings), Workshop(fork, store, settings)
    if not actions:
        assert onto is not None
        pairs = tuple(_rebase.rename(text) for text in renames)
        request = Request(onto, start, leap, series, out, pairs, dry_run)
        # What has no place to go is only looked at: a commit that is no release has no pin.
        if dry_run or (out is None and (series is not None or onto.startswith("git:"))):
            report = driver.look(request)
        else:
            report = driver.begin(_rebase.session(fork, repo, out), request)
        # Of someone else's series nothing is known but its text.
        found = _rebase.gate(report, onto, shop) if series is None else None
        return _rebase.finish(report, console, found)
    session = _rebase.session(fork, repo, out)
    if abort:
        return _rebase.aborted(driver.abort(session), session, console)
    own = driver.is_own(session)
    report = driver.go_on(session) if go_on else driver.skip(session, why) if skip else driver.status(session)
    return _rebase.finish(report, console, _rebase.gate(report, None, shop) if own else None)
