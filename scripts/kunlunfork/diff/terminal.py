"""A diff as a terminal shows it: git's layout, its colours where wanted, nothing that steers the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from kunlunfork import paths
from kunlunfork.console import printable
from kunlunfork.diff import table, words
from kunlunfork.diff.interfaces import Interfaces, Method
from kunlunfork.diff.overlap import Met
from kunlunfork.diff.points import Checked
from kunlunfork.diff.table import Row
from kunlunfork.diff.text import FileDiff

_COLOURS = {b"+": "green", b"-": "red"}
_KINDS = {"add": "new file", "delete": "deleted", "rename": "renamed from", "copy": "copied from"}


class Paint:
    """Colours, or none."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        if not self._on or not text:
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)


def file(
    diff: FileDiff, paint: Paint, notes: Sequence[Sequence[str]] = (), head: Sequence[str] = (),
    headings: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """The lines of one file. `notes` are said below the head of each hunk, `head` below that of the file; `headings`
    stand beside the numbers of a hunk, in place of git's."""
    section = diff.section
    old = b"a/" + section.old_path if section.old_path is not None else b"/dev/null"
    new = b"b/" + section.new_path if section.new_path is not None else b"/dev/null"
    yield paint(f"diff --git a/{paths.show(section.old_path or diff.path)} b/{paths.show(diff.path)}", bold=True)
    if section.kind in _KINDS:
        where = f" {paths.show(section.old_path or b'')}" if section.kind in ("rename", "copy") else ""
        yield paint(f"{_KINDS[section.kind]}{where}", bold=True)
    if section.old_mode != section.new_mode and section.old_mode is not None and section.new_mode is not None:
        yield paint(f"mode {section.old_mode:o} -> {section.new_mode:o}", bold=True)
    for line in head:
        yield paint(f"# {printable(line)}", "cyan")
    if section.binary:
        yield "binary: not shown"
        return
    if section.hunks:
        yield paint(f"--- {paths.show(old)}", bold=True)
        yield paint(f"+++ {paths.show(new)}", bold=True)
    for at, hunk in enumerate(section.hunks):
        place = f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@"
        own = headings[at] if at < len(headings) else ""
        within = f" {printable(own)}" if own else f" {_shown(hunk.section)}" if hunk.section else ""
        yield paint(place, "cyan") + within
        for note in notes[at] if at < len(notes) else ():
            yield paint(f"# {printable(note)}", "cyan")
        for text in hunk.lines:
            yield paint(_shown(text), _COLOURS.get(text[:1]))


def _shown(line: bytes) -> str:
    return words.clean(line.decode("utf-8", "backslashreplace"))


def stat(files: Sequence[Met], paint: Paint, names: Sequence[str]) -> Iterator[str]:
    """Lines added and removed by each side in each file, widest first column; `names` are those of the sides."""
    if not files:
        return
    shown = [paths.show(met.path) for met in files]
    cells = [[_counts(side) for side in (met.ours, met.theirs)][: len(names)] for met in files]
    sums = []
    for side in range(len(names)):
        these = [diff for met in files if (diff := (met.ours, met.theirs)[side]) is not None]
        sums.append(f"{len(these)} files +{sum(d.added for d in these)} -{sum(d.removed for d in these)}")
    first = max(map(len, shown))
    wide = [max(len(names[i]), len(sums[i]), *(len(row[i]) for row in cells)) for i in range(len(names))]

    def line(name: str, row: Sequence[str]) -> str:
        return "  ".join([f"{name:<{first}}", *(f"{cell:>{wide[i]}}" for i, cell in enumerate(row))]).rstrip()

    yield paint(line("", names), bold=True)
    for met, name, row in zip(files, shown, cells, strict=True):
        said = words.meeting(met) if len(names) > 1 else ""
        yield line(name, row) + (paint(f"  {said}", "yellow") if said else "")
    yield paint(line("", sums), bold=True)


def _counts(diff: FileDiff | None) -> str:
    if diff is None:
        return ""
    kind = {"add": "new ", "delete": "deleted ", "rename": "renamed ", "copy": "copied "}.get(diff.section.kind, "")
    return kind + ("binary" if diff.section.binary else f"+{diff.added} -{diff.removed}")


def symbols(rows: Sequence[Row], paint: Paint) -> Iterator[str]:
    """The table of symbols, by file; those with which nobody did anything are counted only."""
    shown = [row for row in rows if not row.plain]
    width = max((len(row.state) for row in shown), default=0)
    path = None
    for row in shown:
        if row.path != path:
            path = row.path
            yield paint(printable(path), bold=True)
        name = printable(row.name or "(module)")
        drift = f"  mainline: {printable(str(row.drift))}" if row.drift is not None else ""
        yield f"  {paint(f'{row.state:<{width}}', 'cyan')}  {name}{paint(drift, 'yellow')}"
        for each in row.patches:
            yield f"  {'':<{width}}    {printable(each)}"
        for change in row.fork:
            yield f"  {'':<{width}}    signature: {printable(change)}"
        if row.orphaned:
            yield paint(f"  {'':<{width}}    nothing to stand in for any more: droppable, or renamed", "yellow")
        for stand in row.by:
            yield f"  {'':<{width}}    <- {printable(str(stand))}"
    counted = ", ".join(f"{count} {state}" for state, count in table.counts(rows).items())
    yield paint(f"{len(rows)} symbols: {counted}" if rows else "no symbols", bold=True)


def interfaces(found: Interfaces, paint: Paint, against: str | None) -> Iterator[str]:
    """The stages of a step, then runner and speculator: what calls what, what the fork replaces, what changed."""
    yield paint("One decode step", bold=True)
    for stage in found.stages:
        yield paint(printable(stage.name), "cyan")
        for entry in stage.calls:
            yield f"  {entry.caller}:{entry.line}  {printable(entry.to)}"
        for sign, names in (("+", stage.arrived), ("-", stage.left)):
            for name in names:
                yield paint(f"  {sign} {printable(name)} in {against}", "yellow")
        for (path, name), by in stage.replaced:
            yield f"  fork: {printable(path)}::{printable(name)}"
            for each in by:
                yield f"        <- {printable(str(each))}"
    for title, methods in (("Runner", found.runner), ("Verify", found.verify), ("Propose", found.propose)):
        yield paint(title, bold=True)
        for method in methods:
            yield from _method(method, paint, against)


def _method(method: Method, paint: Paint, against: str | None) -> Iterator[str]:
    yield f"  {paint(printable(method.name), 'cyan')}{printable(method.signature)}"
    yield f"      {printable(method.path)}:{method.line}"
    for what, names in (("called by", method.callers), ("calls", method.calls)):
        if names:
            yield f"      {what} {printable(', '.join(names))}"
    for each in method.by:
        yield f"      <- {printable(str(each))}"
    if method.newer is None:
        yield paint(f"      gone in {against}", "yellow")
    for change in method.newer or ():
        yield paint(f"      {against}: {printable(change)}", "yellow")


def points(found: Sequence[Checked], paint: Paint) -> Iterator[str]:
    """DSpark and its reference, point by point."""
    yield paint("DSpark and the DeepSpec reference", bold=True)
    for each in found:
        yield f"  {paint(printable(each.point.title), 'cyan')}: the reference {printable(each.point.reference)}"
        for one in (each.now, *each.changes):
            line = f"      {one.version}: {printable(one.says)}" + (f"  ({printable(one.place)})" if one.place else "")
            yield line if one is each.now else paint(line, "yellow")
        if each.ours is not None:
            yield f"      the fork: {printable(each.ours.says)}  ({printable(each.ours.place)})"
