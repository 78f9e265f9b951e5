"""kunlunfork matrix plan"""

from __future__ import annotations

import json
from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, table
from kunlunfork.errors import ForkError


@click.command("plan")
@click.option("--shards", type=click.IntRange(1, 10_000), help="How many machines there are.")
@click.option("--tier", "tiers", default="ops", show_default=True, help="With commas between.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["term", "github", "json"]),
    default="term",
    show_default=True,
    help="github: a job matrix on one line.",
)
@click.option(
    "--learn",
    type=FOLDER,
    multiple=True,
    metavar="RESULTS",
    help="Record the times of these results in the clone's ci/results/times.json.",
)
@repo_option
@verb
def command(
    shards: int | None, tiers: str, form: str, learn: tuple[Path, ...], repo: Path | None, console: Console
) -> None:  # fmt: skip
    """Divide the matrix among machines, by the times in ci/results/times.json; matrix run --shard I/N runs a share.

    The same on every machine: it needs no engine environment and no network.
    """
    from kunlunfork.matrix import plan, times

    if shards is None and not learn:
        raise click.UsageError("--shards N, or --learn RESULTS")
    content = console.find_content(repo)
    file = times.recorded(content)
    learnt = None
    if learn:
        if not content.clone:
            raise ForkError(
                f"{content.root} is no clone", expected="a clone, whose ci/results/times.json is kept in git",
                fix="name one: --repo DIR",
            )  # fmt: skip
        learnt = times.learn(file, learn)
        console.note(f"{learnt} units recorded in {file}")
    if shards is None:
        console.result({"times": str(file), "learnt": learnt}, lambda: None)
        return
    planned = plan.plan(times.read(file), tuple(tier.strip() for tier in tiers.split(",")), shards)
    body = {"times": str(file), "learnt": learnt, **plan.as_json(planned)}

    def show() -> None:
        if form == "github":
            print(plan.github(planned))
        elif form == "json":
            print(json.dumps(plan.as_json(planned), indent=1))
        else:
            table(
                ("shard", "units", "seconds"),
                [(str(p.shard), str(len(p.units)), f"{p.seconds:.1f}") for p in planned],
            )

    console.result(body, show)
