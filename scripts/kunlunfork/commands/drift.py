"""kunlunfork drift"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork import errors
from kunlunfork.commands._options import FOLDER, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console

FORMATS = ("term", "md", "html", "json")


@click.command("drift")
@click.option("--from", "start", metavar="PIN", help="Whose contracts [default: the newest pin below].")
@click.option("--to", "onto", metavar="VERSION|git:PATH@REV", help="What they are compared with.")
@click.option("--area", "areas", multiple=True, metavar="NAME", help="Only of this area of vLLM (repeatable).")
@click.option("--format", "form", type=click.Choice(FORMATS), default="term", show_default=True)
@click.option("--long", is_flag=True, help="On a terminal: what changed, upstream's diff, what to do; all contracts.")
@click.option("--out", type=FOLDER, help="Write into this file.")
@click.option("--ack", metavar="SYMBOL", help="Note that somebody looked at this contract (with --why).")
@click.option("--why", default="", help="With --ack: the reason that it is right as it is.")
@click.option("--consumer", type=FOLDER, help="Not the fork: the package in this folder, which builds on vLLM.")
@click.option("--write", is_flag=True, help="Write contracts.json of every pin, or of --from.")
@repo_option
@index_option
@offline_option
@verb
def command(
    start: str | None, onto: str | None, areas: tuple[str, ...], form: str, long: bool, out: Path | None,
    ack: str | None, why: str, consumer: Path | None, write: bool, repo: Path | None, index_url: str | None,
    offline: bool, console: Console,
) -> int:  # fmt: skip
    """Show what the fork relies on in upstream, and what another release made of it.

    \b
    kunlunfork drift --to 0.28.0                           since the newest pin below it
    kunlunfork drift --from 0.25.1 --to 0.33.0 --area spec_decode --long
    kunlunfork drift --to 0.28.0 --format html --out drift.html
    kunlunfork drift --to 0.28.0 --ack vllm.a.b:C.d --why "only a log line"
    kunlunfork drift --write                               contracts.json of the pins
    kunlunfork drift --consumer DIR --from 0.25.1 --to 0.26.0     any package that builds on vLLM: what breaks

    Nothing of upstream is imported or run. Exit code 3 if a contract drifted that neither a parity cell nor a person
    vouches for; of a consumer, if something breaks.
    """
    from kunlunfork import cache, outfile
    from kunlunfork.commands import _drift
    from kunlunfork.contracts import run
    from kunlunfork.sources.base import Settings
    from kunlunfork.store import Store

    if write and (ack or onto):
        raise click.UsageError("--write takes neither --ack nor --to")
    if not write and onto is None:
        raise click.UsageError("say --to VERSION, what to compare with")
    if bool(ack) != bool(why.strip()):
        raise click.UsageError("--ack SYMBOL and --why TEXT go together")
    if consumer is not None and (start is None or ack or areas or write or form in ("md", "html")):
        raise click.UsageError("--consumer DIR takes --from and --to, --long, --out, and --format term or json")
    if console.as_json and form in ("md", "html") and out is None:
        raise click.UsageError(f"--json prints one object; name a file for the {form}: --out FILE")
    console.as_json = console.as_json or (form == "json" and out is None)
    if out is not None:
        outfile.check(out)
    content = console.find_content(repo)
    if write or ack:
        _drift.check_clone(content)
    folders = cache.default()
    shop = run.Workshop(content, Store(folders.store), Settings(folders, index_url, offline, console))
    if write:
        return _drift.written(shop, start, console)
    assert onto is not None
    if consumer is not None:
        assert start is not None
        return _drift.show_consumer(*run.consumer(shop, consumer, start, onto), form, long, out, console)
    if ack:
        file, one = run.acknowledge(shop, start, onto, ack, why.strip())
        console.result(
            {"file": str(file), "symbol": str(one.contract), "key": one.key, "why": why.strip()},
            lambda: print(f"{file}: {one.contract} acknowledged"),
        )
        return errors.OK
    return _drift.show_report(run.find(shop, start, onto, areas), form, long, out, console)
