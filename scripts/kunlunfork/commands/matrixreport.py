"""kunlunfork matrix report"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kunlunfork import errors
from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console
from kunlunfork.errors import ForkError

if TYPE_CHECKING:
    from kunlunfork.matrix.report import Report

FORMATS = ("term", "md", "html", "junit", "json", "record")


@click.command("report")
@click.argument("results", type=FOLDER, nargs=-1, required=True, metavar="RESULTS...")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="term",
    show_default=True,
    help="record: the sums, as a line for ci/results/matrix.jsonl.",
)
@click.option(
    "--baseline", type=FOLDER, multiple=True, help="Earlier results: says what is new, mended, missing, slower."
)
@click.option("--keep-stale", is_flag=True, help="Keep results of another overlay or series than this fork's.")
@click.option("--out", type=FOLDER, help="Write into this file.")
@click.option("--into", type=FOLDER, help="Put the Markdown between the marks of this file (README.md).")
@repo_option
@verb
def command(
    results: tuple[Path, ...], form: str, baseline: tuple[Path, ...], keep_stale: bool, out: Path | None,
    into: Path | None, repo: Path | None, console: Console,
) -> int:  # fmt: skip
    """Bring files of results together and show them: sites by settings, and what did not pass.

    Exit code 1 where a cell did not pass, is missing, ended differently in two runs, or where nothing is left.
    """
    from kunlunfork import outfile
    from kunlunfork.matrix import merge, report
    from kunlunfork.matrix import results as files

    if into is not None and (form != "md" or out is not None):
        raise click.UsageError("--into goes with --format md, and without --out")
    if console.as_json and form not in ("term", "json") and out is None and into is None:
        raise click.UsageError(f"--json and --format {form} need a file: --out")
    for file in (out, into):
        if file is not None:
            outfile.check(file)
    hashes = None if keep_stale else merge.hashes_of(console.find_content(repo))
    merged = merge.merge(files.load(results), hashes)
    before = merge.merge(files.load(baseline), None).cells if baseline else None
    made = report.make(merged, before)
    text = _text(form, made)
    if into is not None:
        _put(into, text())
    elif out is not None:
        with outfile.writing(out) as written:
            # Half a surrogate pair, which JSON can bring, has no place in UTF-8.
            written.write(text().encode("utf-8", "backslashreplace"))
    body = {**report.as_json(made), "out": None if out is None else str(out)}

    def show() -> None:
        if out is None and into is None:
            print(text(), end="")
        else:
            from kunlunfork.matrix import reportterm

            print(f"{reportterm.verdict(made)}; see {out or into}")

    if made.ok:
        console.result(body, show)
        return errors.OK
    from kunlunfork.matrix import reportterm

    console.refused(body, ForkError(reportterm.verdict(made)), show)
    return errors.USER


def _text(form: str, made: Report) -> Callable[[], str]:
    """What renders the report; only that is imported."""
    if form == "term":
        from kunlunfork.matrix import reportterm

        return lambda: reportterm.text(made)
    if form == "md":
        from kunlunfork.matrix import reportmd

        return lambda: reportmd.text(made)
    if form == "html":
        from kunlunfork.matrix import reporthtml

        return lambda: reporthtml.text(made)
    if form == "junit":
        from kunlunfork.matrix import junit

        return lambda: junit.text(made)
    if form == "record":
        from kunlunfork.matrix import records

        return lambda: "".join(json.dumps(line) + "\n" for line in records.lines(made.cells))
    from kunlunfork.matrix import report

    return lambda: json.dumps(report.as_json(made), indent=1) + "\n"


def _put(file: Path, text: str) -> None:
    from kunlunfork import outfile
    from kunlunfork.matrix import reportmd

    try:
        made = reportmd.into(file.read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as e:
        raise ForkError(f"{file} cannot be read", found=str(e)) from e
    except ValueError as e:
        raise ForkError(
            f"{file} has no place for the table",
            found=str(e),
            expected=f"the lines {reportmd.BEGIN} and {reportmd.END}",
        ) from e
    with outfile.writing(file) as out:
        out.write(made.encode("utf-8", "backslashreplace"))
