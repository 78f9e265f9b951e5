"""kunlunfork bench"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork.commands import benchengines
from kunlunfork.commands._options import FOLDER, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console, table
from kunlunfork.errors import ForkError


@click.group("bench")
def command() -> None:
    """Measure the tool, or engines, on this machine. Numbers, not a test: a missed target is told, the exit code is 0.

    \b
    kunlunfork bench apply
    kunlunfork bench ladder --onto 0.33.0
    kunlunfork bench e2e --model DIR --draft DIR
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


def _listed(value: str, what: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise ForkError(f"no {what} given", expected=f"{what} with commas between them")
    return found


@command.command("rebase")
@click.option("--seed", type=int, default=7, show_default=True, help="The same seed draws the same edits.")
@click.option(
    "--from", "start", metavar="VERSION", default="0.25.1", show_default=True, help="Where the edits are made."
)
@click.option("--releases", metavar="V,V", default="0.26.0,0.29.0,0.33.0", show_default=True, help="Where they go.")
@click.option("--n", "count", type=click.IntRange(1, 100_000), default=600, show_default=True, help="How many edits.")
@click.option("--kinds", metavar="K,K", help="insert, replace, delete, parameter, decorate, import [default: all].")
@click.option("--ladder/--no-ladder", default=True, help="Go to the last release step by step, too [default: yes].")
@click.option("--dir", "folder", type=FOLDER, default=Path(), help="Where to work, in a folder removed at the end [.].")
@click.option("--out", type=FOLDER, help="Write the result as JSON into this file, too.")
@repo_option
@index_option
@offline_option
@verb
def rebase(
    seed: int, start: str, releases: str, count: int, kinds: str | None, ladder: bool, folder: Path, out: Path | None,
    repo: Path | None, index_url: str | None, offline: bool, console: Console,
) -> None:  # fmt: skip
    """Move edits of vLLM to other releases with kunlunfork, git's three-way merge, `git apply` and quilt.

    Each edit is a small one in a function that both releases have. What a tool makes of it is judged by the syntax
    trees alone, apart from the tool's own checks: right, doubtful (in its function, but what was before and after it
    are others), wrong, or refused. A wrong one is what must not be.
    """
    from kunlunfork import cache, outfile
    from kunlunfork.bench import rebase as measured
    from kunlunfork.bench import run as runs
    from kunlunfork.bench.rebasecases import KINDS
    from kunlunfork.sources.base import Settings

    if out is not None:
        outfile.check(out)
    wanted = tuple(KINDS) if kinds is None else _listed(kinds, "kinds of edits")
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise ForkError(f"no such kind of edit: {', '.join(unknown)}", expected=", ".join(KINDS))
    plan = measured.Plan(start, _listed(releases, "releases"), wanted, count, seed, ladder)
    settings = Settings(cache.default(), index_url, offline, console)
    result = measured.run(plan, console.find_content(repo), settings, folder)
    if out is not None:
        runs.write(out, result)

    def show() -> None:
        machine = result["machine"]
        print(f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, git {machine['git']}")
        print(f"{count} edits of vLLM {start}, seed {seed}: {', '.join(wanted)}\n")
        tables = [measured.leaps_table, measured.ways_table, measured.kinds_table]
        for made in [*tables, *([measured.ladder_table] if ladder else [])]:
            table(*made(result))
            print()
        for name, told in result["ladder"]["tools"].items() if ladder else ():
            print(f"ladder: {told['arrived']} of {result['ladder']['cases']} arrived by {name}")

    console.result(result, show)


@command.command("drift")
@click.option("--vllm", "version", metavar="PIN", help="The pin whose release is edited [default: the oldest].")
@click.option("--n", "count", type=click.IntRange(1, 100_000), default=250, show_default=True,
              help="How many edits that matter, and as many that do not.")  # fmt: skip
@click.option("--seed", type=int, default=7, show_default=True, help="The same seed draws the same edits.")
@click.option("--out", type=FOLDER, help="Write the result as JSON into this file, too.")
@repo_option
@index_option
@offline_option
@verb
def drift(
    version: str | None, count: int, seed: int, out: Path | None, repo: Path | None, index_url: str | None,
    offline: bool, console: Console,
) -> None:  # fmt: skip
    """Edit a release where the fork relies on it, and where it does not, and count what drift says of it.

    What matters is told by text and syntax alone, apart from what drift itself finds. Right is, of an edit that
    matters, that the symbol it is about is told; of another, that nothing is.
    """
    import sys

    from kunlunfork import cache, outfile
    from kunlunfork.bench import drift as measured
    from kunlunfork.bench import run as runs
    from kunlunfork.contracts.run import Workshop
    from kunlunfork.sources.base import Settings
    from kunlunfork.store import Store

    if out is not None:
        outfile.check(out)
    content = console.find_content(repo)
    folders = cache.default()
    shop = Workshop(content, Store(folders.store), Settings(folders, index_url, offline, console))
    plan = measured.Plan(content.pin(version or content.versions()[0]).version, count, seed)
    result = measured.run(shop, plan, folders.root, ["kunlunfork", *sys.argv[1:]])
    if out is not None:
        runs.write(out, result)

    def show() -> None:
        table(
            ("edits", "matter", "right", "of"),
            [
                (k, "yes" if r["matters"] else "no", str(r["right"]), str(r["edits"]))
                for k, r in result["kinds"].items()
            ],
        )
        for wrong in result["wrong"]:
            print(f"{wrong['kind']}: {wrong['symbol']} {wrong['what']}: {', '.join(wrong['told']) or 'nothing'}")
        print(f"recall {result['recall']:.1%} of {result['matter']}, precision {result['precision']:.1%}")

    console.result(result, show)


command.add_command(benchengines.e2e)
command.add_command(benchengines.host)
