"""Where a report goes: a terminal or its pager, a file, a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import outfile
from kunlunfork.console import Console
from kunlunfork.diff import pager, terminal, text, words
from kunlunfork.diff.report import Report
from kunlunfork.diff.terminal import Paint


@dataclass(frozen=True)
class Options:
    form: str
    stat: bool
    symbols: bool
    interfaces: bool
    out: Path | None
    color: str
    paged: bool


def show(report: Report, console: Console, options: Options) -> None:
    """Write a report as it is wanted (raises `ForkError` where the file cannot be written)."""
    if options.out is not None:
        data = render(report, options)
        with outfile.writing(options.out) as out:
            out.write(data)
    if console.as_json:
        console.result(report.as_json(), lambda: None)
    elif options.out is None:
        pager.write(render(report, options), pager.command() if options.paged and options.form == "term" else None)


def render(report: Report, options: Options) -> bytes:
    """The bytes of a report."""
    if options.form == "json":
        return json.dumps(report.as_json(), indent=1).encode() + b"\n"
    if options.form == "patch":
        return text.patch(report.ours)
    if options.form == "html":
        from kunlunfork.diff import page

        return page.text(report)
    if options.form == "md":
        from kunlunfork.diff import markdown

        return markdown.text(report).encode("utf-8", "backslashreplace")
    paint = Paint(options.out is None and pager.colours(options.color))
    lines: list[str] = []
    if options.stat:
        lines += _stat(report, paint)
    if options.symbols:
        lines += terminal.symbols(report.symbols or (), paint)
    if options.interfaces and report.interfaces is not None:
        lines += terminal.interfaces(report.interfaces, paint, report.against)
        lines += terminal.points(report.points, paint)
    if not (options.stat or options.symbols or options.interfaces):
        lines += _term(report, paint)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _stat(report: Report, paint: Paint) -> Iterator[str]:
    return terminal.stat(report.met, paint, [report.mine] + ([report.against] if report.against else []))


def _term(report: Report, paint: Paint) -> Iterator[str]:
    three = report.against is not None
    for met in report.met:
        if met.ours is not None:
            side = [f"{report.mine}: vLLM {report.pin} and the {report.mine}"] if three else []
            head = [*side, *words.head(report, met)]
            headings = report.headings.get(met.ours.path, ())
            yield from terminal.file(met.ours, paint, words.notes(report, met), head, headings)
        if met.theirs is not None:
            yield from terminal.file(met.theirs, paint, (), [f"mainline: vLLM {report.pin} and {report.against}"])
