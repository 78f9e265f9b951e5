"""kunlunfork bench"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console, table


@click.group("bench")
def command() -> None:
    """Measure the tool on this machine. Numbers, not a test: a missed target is told, the exit code stays 0.

    \b
    kunlunfork bench apply
    kunlunfork bench ladder --onto 0.33.0
    """


@command.command("apply")
@click.option("--vllm", "version", metavar="VERSION", help="The release [default: the newest pin].")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often each is timed.")
@click.option("--dir", "folder", type=FOLDER, default=Path(), help="Where to work, in a folder removed at the end [.].")
@click.option("--out", type=FOLDER, help="Write the result as JSON into this file, too.")
@repo_option
@index_option
@offline_option
@verb
def apply_(
    version: str | None, rounds: int, folder: Path, out: Path | None, repo: Path | None, index_url: str | None,
    offline: bool, console: Console,
) -> None:  # fmt: skip
    """Time apply against `git worktree add`, `git clone --shared` with `git am`, quilt and `tar xzf`.

    All of them take turns in one run, after a round that warms up. Warm is what is measured: nothing is dropped from
    the page cache. Each round takes about 0.8 GB in --dir, until the end. "others" is how many processors other
    programs kept busy meanwhile: with more than a few hundredths, measure again at a quiet time. Not soon after trees
    were deleted, either: on ext4 without a journal, new files are then slow for five minutes.
    """
    from kunlunfork import cache, outfile
    from kunlunfork.bench import report, run
    from kunlunfork.sources.base import Settings

    if out is not None:
        outfile.check(out)
    settings = Settings(cache.default(), index_url, offline, console)
    result, timed, verdicts = run.bench_apply(console.find_content(repo), version, rounds, folder, settings)
    if out is not None:
        run.write(out, result)

    def show() -> None:
        machine = result["machine"]
        print(f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}, load {machine['load']}", end="")
        print(f" before and {result['load_after']} after; Python {machine['python']}, git {machine['git']}")
        print(f"vLLM {result['version']}, overlay {result['overlay_hash'][:12]}, {rounds} rounds; {report.WARM}\n")
        table(*report.steps_table(timed))
        for name, why in result["missing"].items():
            print(f"{name}: {why}")
        print()
        table(*report.targets_table(verdicts, report.ratios(timed)))

    console.result(result, show)


@command.command("ladder")
@click.option("--onto", metavar="VERSION", required=True, help="The last release.")
@click.option("--from", "begin", metavar="VERSION", help="The pin whose series is carried [default: the oldest].")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often each is timed.")
@click.option("--dir", "folder", type=FOLDER, default=Path(), help="Where to work, in a folder removed at the end [.].")
@click.option("--out", type=FOLDER, help="Write the result as JSON into this file, too.")
@repo_option
@index_option
@offline_option
@verb
def ladder(
    onto: str, begin: str | None, rounds: int, folder: Path, out: Path | None, repo: Path | None,
    index_url: str | None, offline: bool, console: Console,
) -> None:  # fmt: skip
    """Time a rebase through all releases against `git rebase` of the same commits in a full checkout."""
    from kunlunfork import cache, outfile
    from kunlunfork.bench import ladder as bench
    from kunlunfork.bench import run
    from kunlunfork.sources.base import Settings

    if out is not None:
        outfile.check(out)
    settings = Settings(cache.default(), index_url, offline, console)
    result, timed = bench.bench_ladder(console.find_content(repo), begin, onto, rounds, folder, settings)
    if out is not None:
        run.write(out, result)

    def show() -> None:
        print(f"vLLM {' -> '.join(result['releases'])}, {result['patches']} patches, {rounds} rounds")
        rows = [(t.step.name, f"{t.median:.2f} s", f"{t.least:.2f} s", f"{t.cpu:.2f} s", t.step.what) for t in timed]
        table(("", "median", "least", "cpu", ""), rows)
        print(f"git rebase takes {result['ratio_git_rebase_to_merges']:.1f} times as long as the merges")
        print(f"merges within {result['limit_merges']:g} s: {'yes' if result['met'] else 'no'}")

    console.result(result, show)
