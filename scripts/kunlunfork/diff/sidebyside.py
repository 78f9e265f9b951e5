"""One file of a diff as HTML: old and new side by side, unchanged code folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kunlunfork.console import printable
from kunlunfork.diff import code, text
from kunlunfork.diff.code import Line, Pair
from kunlunfork.diff.text import CONTEXT, FileDiff

_EMPTY = '<td class="n"></td><td class="none"></td>'


def table(
    diff: FileDiff, old: bytes, new: bytes, notes: Sequence[Sequence[str]] = (), headings: Sequence[str] = (), *,
    fold: bool = True,
) -> str:  # fmt: skip
    """The rows of a file.

    Args:
        old, new: what it was and is.
        notes: said above each hunk.
        headings: what it is in, in place of git's.
        fold: unchanged code is there, folded; else only how much of it there is.
    """
    if diff.section.binary:
        return "<p>binary: not shown</p>"
    if not diff.section.hunks:
        return ""
    return "".join(_Table(diff, old, new, notes, headings, fold).parts())


class _Table:
    def __init__(self, diff: FileDiff, old: bytes, new: bytes, notes: Sequence[Sequence[str]], headings: Sequence[str],
                 fold: bool) -> None:  # fmt: skip
        self._hunks, self._notes, self._headings, self._fold = diff.section.hunks, notes, headings, fold
        self._whole = diff.section.kind in ("add", "delete")
        self._lines = (
            code.lines(old, diff.section.old_path or diff.path), code.lines(new, diff.section.new_path or diff.path)
        )  # fmt: skip
        self._plain = tuple(["".join(t for _, t in line) for line in side] for side in self._lines)

    def parts(self) -> Iterator[str]:
        if self._whole:
            yield from self._one_sided()
            return
        at = shift = 0  # lines of the old file that were shown; how far the new one is ahead
        for number, hunk in enumerate(self._hunks):
            changes = list(text.changes(hunk))
            first = max(at, changes[0].old_start - CONTEXT)
            yield self._unchanged(at, first, shift)
            yield self._said(number)
            rows = []
            for i, change in enumerate(changes):
                start = first if i == 0 else changes[i - 1].old_end
                rows += [self._row(Pair(n, n + shift), "") for n in range(start, change.old_start)]
                rows += [self._row(pair, "c") for pair in code.pairs(change, *self._plain)]
                shift = change.new_end - change.old_end
            at = changes[-1].old_end
            following = self._hunks[number + 1] if number + 1 < len(self._hunks) else None
            limit = next(text.changes(following)).old_start if following is not None else len(self._lines[0])
            end = min(at + CONTEXT, limit)
            rows += [self._row(Pair(n, n + shift), "") for n in range(at, end)]
            at = end
            yield f"<table>{_COLUMNS}{''.join(rows)}</table>"
        yield self._unchanged(at, len(self._lines[0]), shift)

    def _one_sided(self) -> Iterator[str]:
        side = 0 if self._lines[0] else 1
        sign = "del" if side == 0 else "add"
        rows = "".join(
            f'<tr><td class="n">{n}</td><td class="{sign}">{code.html(line)}</td></tr>'
            for n, line in enumerate(self._lines[side], 1)
        )
        yield self._said(0)
        yield f'<table class="one"><colgroup><col class="n"><col></colgroup>{rows}</table>'

    def _said(self, number: int) -> str:
        notes = self._notes[number] if number < len(self._notes) else ()
        own = self._headings[number] if number < len(self._headings) else ""
        heading = own or printable(self._hunks[number].section.decode("utf-8", "backslashreplace").strip())
        place = f'<p class="hunk"><code>{escape(heading)}</code></p>' if heading else ""
        return place + "".join(f'<p class="note">{escape(note)}</p>' for note in notes)

    def _unchanged(self, start: int, end: int, shift: int) -> str:
        count = end - start
        if count <= 0:
            return ""
        said = f"{count} unchanged line{'s' * (count > 1)}"
        if not self._fold:
            return f'<p class="fold">⋯ {said}</p>'
        rows = "".join(self._row(Pair(n, n + shift), "") for n in range(start, end))
        return f"<details><summary>⋯ {said}</summary><table>{_COLUMNS}{rows}</table></details>"

    def _row(self, pair: Pair, kind: str) -> str:
        marks: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]] = ((), ())
        if kind and pair.old is not None and pair.new is not None:
            marks = code.words(self._plain[0][pair.old], self._plain[1][pair.new])
        cells = ""
        for side, number in enumerate((pair.old, pair.new)):
            if number is None:
                cells += _EMPTY
                continue
            line: Line = self._lines[side][number]
            name = f' class="{("del", "add")[side]}"' if kind else ""
            cells += f'<td class="n">{number + 1}</td><td{name}>{code.html(line, marks[side])}</td>'
        return f"<tr>{cells}</tr>"


_COLUMNS = '<colgroup><col class="n"><col class="half"><col class="n"><col class="half"></colgroup>'
