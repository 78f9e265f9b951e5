"""Lines of code for a page: syntax as classes of Pygments, changed words marked, old and new lines side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

from kunlunfork.diff.words import clean
from kunlunfork.rebase.linediff import Change

# Pieces of one line: (class, text).
Line = list[tuple[str, str]]
# Of changed lines, the most on either side that are matched with each other one by one.
_LARGEST = 80
# How much alike two lines are (share of their words) that stand side by side.
_ALIKE = 0.4
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def lines(data: bytes, path: bytes) -> list[Line]:
    """The lines of a file, coloured where it is Python; bytes that are no UTF-8 are escaped."""
    text = clean(data.decode("utf-8", "backslashreplace").replace("\r", "␍"))
    if not text:
        return []
    plain = text.removesuffix("\n").split("\n")
    if not path.endswith(b".py"):
        return [[("", line)] for line in plain]
    from pygments.lexers.python import PythonLexer
    from pygments.token import STANDARD_TYPES

    found: list[Line] = [[]]
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text.removesuffix("\n")):
        name = STANDARD_TYPES.get(kind, "")
        first, *rest = value.split("\n")
        if first:
            found[-1].append((name if first.strip() else "", first))
        for part in rest:
            found.append([(name if part.strip() else "", part)] if part else [])
    # A lexer that lost a line would show code beside another line's number.
    return found if len(found) == len(plain) else [[("", line)] for line in plain]


def html(line: Line, marks: Sequence[tuple[int, int]] = ()) -> str:
    """One line; `marks` are ranges of characters that changed, in order."""
    parts: list[str] = []
    at = 0
    for name, text in line:
        for piece, marked in _cut(text, at, marks):
            inner = f'<i class="{name}">{escape(piece)}</i>' if name else escape(piece)
            parts.append(f"<b>{inner}</b>" if marked else inner)
        at += len(text)
    return "".join(parts)


def _cut(text: str, at: int, marks: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The pieces of a text that begins at `at`, and whether each is marked."""
    here = 0
    for start, stop in marks:
        first, last = max(start - at, here), min(stop - at, len(text))
        if first < last:
            if here < first:
                yield text[here:first], False
            yield text[first:last], True
            here = last
    if here < len(text):
        yield text[here:], False


@dataclass(frozen=True)
class Pair:
    """Two lines side by side, by their numbers from 0; None where one side has none."""

    old: int | None
    new: int | None


def pairs(change: Change, old: Sequence[str], new: Sequence[str]) -> Iterator[Pair]:
    """The lines of a change, alike ones beside each other, in the order of both."""
    a, b = old[change.old_start : change.old_end], new[change.new_start : change.new_end]
    matched = _matched(a, b) if len(a) <= _LARGEST and len(b) <= _LARGEST else _in_order(len(a), len(b))
    i = j = 0
    for x, y in [*matched, (len(a), len(b))]:
        while i < x or j < y:
            yield Pair(change.old_start + i if i < x else None, change.new_start + j if j < y else None)
            i, j = i + (i < x), j + (j < y)
        if x < len(a) and y < len(b):
            yield Pair(change.old_start + x, change.new_start + y)
            i, j = x + 1, y + 1


def _in_order(a: int, b: int) -> list[tuple[int, int]]:
    return [(n, n) for n in range(min(a, b))]


def _matched(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of alike lines in order whose likeness sums up to most."""
    words = [[set(_WORD.findall(line.strip())) for line in side] for side in (a, b)]
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    alike = [[_likeness(x, y) for y in words[1]] for x in words[0]]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            with_it = best[i + 1][j + 1] + alike[i][j] if alike[i][j] >= _ALIKE else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], with_it)
    found = []
    i = j = 0
    while i < len(a) and j < len(b):
        if alike[i][j] >= _ALIKE and best[i][j] == best[i + 1][j + 1] + alike[i][j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b) if a and b else 0.0


def words(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The ranges of characters that differ between two lines, word by word; () where hardly a word is the same."""
    a, b = _WORD.findall(old), _WORD.findall(new)
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    starts = [[0], [0]]
    for side, parts in enumerate((a, b)):
        for part in parts:
            starts[side].append(starts[side][-1] + len(part))
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    same = 0
    for what, i, i_end, j, j_end in matcher.get_opcodes():
        if what == "equal":
            same += sum(not part.isspace() for part in a[i:i_end])
            continue
        for side, (start, end) in enumerate(((i, i_end), (j, j_end))):
            if start < end:
                marks[side].append((starts[side][start], starts[side][end]))
    return marks if same else ([], [])
