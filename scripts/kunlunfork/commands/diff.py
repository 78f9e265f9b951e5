"""kunlunfork diff"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork import errors
from kunlunfork.commands._options import FOLDER, index_option, offline_option, repo_option, verb
from kunlunfork.console import Console

FORMATS = ("term", "patch", "md", "html", "json")
DIFFERS = 10


@click.command("diff")
@click.argument("words", nargs=-1, metavar="[AREA|PATH]...")
@click.option("--area", "named", multiple=True, metavar="NAME", help="An area of patches/areas.toml (repeatable).")
@click.option("--vllm", "version", metavar="PIN", help="The pin [default: the tree's, else the newest].")
@click.option("--against", metavar="VERSION", help="A newer release: what did mainline change since the pin?")
@click.option("--tree", type=FOLDER, help="A fork tree with local edits, in place of the fork as patches and overlay.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="term", show_default=True,
              help="patch: what git apply takes; html: one file.")  # fmt: skip
@click.option("--stat", is_flag=True, help="Only how many lines of which files.")
@click.option("--symbols", is_flag=True, help="The table of classes and functions: what stands in for each, drift.")
@click.option("--interfaces", is_flag=True, help="The stages of a decode step; runner and speculator side by side.")
@click.option("-U", "--unified", "context", type=click.IntRange(0), default=3, help="Lines around a change [3].")
@click.option("--exit-code", is_flag=True, help="Exit code 10 if there is a difference.")
@click.option("--out", type=FOLDER, help="Write into this file.")
@click.option("--color", type=click.Choice(("auto", "always", "never")), default="auto", show_default=True,
              help="auto: on a terminal, without NO_COLOR.")  # fmt: skip
@click.option("--no-pager", is_flag=True, help="No pager [default: git's, on a terminal].")
@repo_option
@index_option
@offline_option
@verb
def command(
    words: tuple[str, ...], named: tuple[str, ...], version: str | None, against: str | None, tree: Path | None,
    form: str, stat: bool, symbols: bool, interfaces: bool, context: int, exit_code: bool, out: Path | None, color: str,
    no_pager: bool, repo: Path | None, index_url: str | None, offline: bool, console: Console,
) -> int:  # fmt: skip
    """Show how the fork differs from mainline, why, and what mainline changed since.

    \b
    kunlunfork diff spec_decode                            the newest pin's release and the fork on it
    kunlunfork diff spec_decode --against 0.33.0           and what a newer mainline did to the same files
    kunlunfork diff sampling --symbols                     each class and function: what stands in for it
    kunlunfork diff vllm/v1/worker/gpu_worker.py --stat    a file or a folder
    kunlunfork diff --vllm 0.25.1 --format patch > fork.patch
    kunlunfork diff spec_decode --against 0.33.0 --format html --out spec_decode.html
    kunlunfork diff --tree TREE --exit-code                a fork tree with edits of yours

    Areas: spec_decode, input_prep, sampling, attention_metadata, runner, all; without one, all that the fork changes.
    """
    from kunlunfork import cache, outfile
    from kunlunfork.diff import report as reports
    from kunlunfork.diff import show, sides
    from kunlunfork.sources.base import Settings
    from kunlunfork.store import Store

    if console.as_json and form in ("md", "html") and out is None:
        raise click.UsageError(f"--json prints one object; name a file for the {form}: --out FILE")
    console.as_json = console.as_json or (form == "json" and out is None)
    if form == "patch" and against is not None:
        raise click.UsageError("--format patch has two sides; --against is a third")
    if form == "patch" and (stat or symbols or interfaces or (console.as_json and out is None)):
        raise click.UsageError("--format patch writes the patch, and nothing else")
    if out is not None:
        outfile.check(out)
    fork = console.find_content(repo)
    folders = cache.default()
    settings = Settings(folders, index_url, offline, console)
    request = sides.Request((*words, *named), version, against, tree)
    with sides.opened(fork, Store(folders.store), settings, request) as opened:
        page = form in ("md", "html")
        report = reports.make(
            opened, folders, reports.Parts(context, symbols or page, interfaces or page, form == "html")
        )
    show.show(report, console, show.Options(form, stat, symbols, interfaces, out, color, not no_pager))
    return DIFFERS if exit_code and report.differs else errors.OK
