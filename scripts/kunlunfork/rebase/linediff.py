"""Which lines an edit changed: few and true, also between look-alike lines."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

# SequenceMatcher takes quadratic time where lines repeat; a gap larger than this (old lines times new ones) that no
# unique line cuts is taken as replaced as a whole.
_LARGEST_GAP = 4_000_000


@dataclass(frozen=True)
class Change:
    """Lines `old_start:old_end` became `new_start:new_end`; lines count from 0, ends are exclusive."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def cut(data: bytes) -> list[bytes]:
    """The lines of a file, each with its newline; a lone CR ends no line, as in git."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def changes(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[Change, ...]:
    """What differs, first to last; between two changes there is at least one line that stayed."""
    runs = [*_runs(old, new), (len(old), len(new), 0)]
    found: list[Change] = []
    i = j = 0
    for a, b, size in runs:
        if (i, j) != (a, b):
            found.append(Change(i, a, j, b))
        i, j = a + size, b + size
    return tuple(found)


def _runs(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """The runs of lines that stayed: where in the old file, where in the new one, how many; touching ones joined."""
    at = (0, 0, 0)
    for a, b, size in _raw_runs(old, new, 0, len(old), 0, len(new)):
        if (a, b) == (at[0] + at[2], at[1] + at[2]):
            at = (at[0], at[1], at[2] + size)
            continue
        if at[2]:
            yield at
        at = (a, b, size)
    if at[2]:
        yield at


def _raw_runs(
    old: Sequence[bytes], new: Sequence[bytes], i: int, i_end: int, j: int, j_end: int
) -> Iterator[tuple[int, int, int]]:
    """Common head and tail; between them the lines that both sides have once, in order; between those, the rest."""
    head = 0
    while i + head < i_end and j + head < j_end and old[i + head] == new[j + head]:
        head += 1
    if head:
        yield i, j, head
        i, j = i + head, j + head
    tail = 0
    while i < i_end - tail and j < j_end - tail and old[i_end - tail - 1] == new[j_end - tail - 1]:
        tail += 1
    i_end, j_end = i_end - tail, j_end - tail
    if i < i_end and j < j_end:
        anchors = _unique(old, new, i, i_end, j, j_end)
        if anchors:
            for a, b in [*anchors, (i_end, j_end)]:
                yield from _raw_runs(old, new, i, a, j, b)
                if a < i_end:
                    yield a, b, 1
                i, j = a + 1, b + 1
        elif (i_end - i) * (j_end - j) <= _LARGEST_GAP:
            matcher = SequenceMatcher(None, old[i:i_end], new[j:j_end], autojunk=False)
            for a, b, size in matcher.get_matching_blocks()[:-1]:
                yield i + a, j + b, size
    if tail:
        yield i_end, j_end, tail


def _unique(
    old: Sequence[bytes], new: Sequence[bytes], i: int, i_end: int, j: int, j_end: int
) -> list[tuple[int, int]]:
    """The longest rising sequence of the lines that occur once on either side."""
    old_count, new_count = Counter(old[i:i_end]), Counter(new[j:j_end])
    place = {new[k]: k for k in range(j, j_end) if new_count[new[k]] == 1}
    pairs = [(k, place[old[k]]) for k in range(i, i_end) if old_count[old[k]] == 1 and old[k] in place]
    ends: list[int] = []  # the least last place in the new file of a sequence of each length
    last: list[int] = []  # the pair that this place is of
    before: list[int] = []  # for each pair the one before it in its sequence
    for number, (_, b) in enumerate(pairs):
        length = bisect_left(ends, b)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(b)
            last.append(number)
        else:
            ends[length], last[length] = b, number
    found: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]
