"""Where a report goes: a terminal or its pager, a file, a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import outfile
from kunlunfork.console import Console
from kunlunfork.diff import pager, terminal, text
from kunlunfork.diff.overlap import Met
from kunlunfork.diff.report import Report
from kunlunfork.diff.terminal import Paint


@dataclass(frozen=True)
class Options:
    form: str
    stat: bool
    symbols: bool
    out: Path | None
    color: str
    paged: bool


def show(report: Report, console: Console, options: Options) -> None:
    """Write a report as it is wanted (raises `ForkError` where the file cannot be written)."""
    if console.as_json and options.out is None:
        console.result(report.as_json(), lambda: None)
        return
    data = render(report, options, as_json=console.as_json)
    if options.out is None:
        pager.write(data, pager.command() if options.paged and options.form != "patch" else None)
        return
    with outfile.writing(options.out) as out:
        out.write(data)


def render(report: Report, options: Options, *, as_json: bool = False) -> bytes:
    """The bytes of a report."""
    if as_json:
        return json.dumps(report.as_json(), indent=1).encode() + b"\n"
    if options.form == "patch":
        return text.patch(report.ours)
    paint = Paint(options.out is None and pager.colours(options.color))
    lines: list[str] = []
    if options.stat:
        lines += _stat(report, paint)
    if options.symbols:
        lines += terminal.symbols(report.symbols or (), paint)
    if not (options.stat or options.symbols):
        lines += _term(report, paint)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _stat(report: Report, paint: Paint) -> Iterator[str]:
    return terminal.stat(report.met, paint, [report.mine] + ([report.against] if report.against else []))


def _term(report: Report, paint: Paint) -> Iterator[str]:
    for met in report.met:
        if met.ours is not None:
            yield from terminal.file(met.ours, paint, notes(report, met), head(report, met))
        if met.theirs is not None:
            yield from terminal.file(met.theirs, paint, (), [f"mainline: vLLM {report.pin} and {report.against}"])


def head(report: Report, met: Met) -> list[str]:
    """What is said of a file of the fork's side: whose all of it is."""
    assert met.ours is not None
    lines = [f"{report.mine}: vLLM {report.pin} and the {report.mine}"] if report.against is not None else []
    if met.gone is not None:
        lines.append(f"mainline {'deleted' if met.gone == 'delete' else 'renamed'} this file")
    origin = report.origins.get(met.ours.path)
    if origin is not None and (not origin.runs or all(hunk == origin.whole for hunk in origin.hunks)):
        lines += map(str, origin.whole)
    return lines


def notes(report: Report, met: Met) -> list[list[str]]:
    """What is said of each hunk of the fork's side: whose it is, where that is not all of its file's; what mainline did
    there, and what becomes of it."""
    assert met.ours is not None
    origin = report.origins.get(met.ours.path)
    found = []
    for at, fates in enumerate(report.fates_of(met.ours)):
        lines = list(map(str, origin.hunks[at])) if origin is not None and origin.hunks[at] != origin.whole else []
        lines += ["mainline changed these lines"] if at in met.hunks else []
        found.append([*lines, *map(str, fates)])
    return found
