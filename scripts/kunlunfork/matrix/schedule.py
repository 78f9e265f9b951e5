"""Dividing the units of a run among processes or machines, by the time that each took."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from kunlunfork.matrix.cells import Cell


def divide(units: Iterable[str], seconds: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
    """Divide units (`cells.unit`) among `count` shares: the longest first, to whom has least.

    Those with known seconds are placed before the others, so that a unit that nobody has measured moves none of
    them. The same arguments give the same shares, whatever order the units come in; a share may be empty.
    """
    guess = _Guess(seconds)
    known = sorted((u for u in set(units) if u in seconds), key=lambda u: (-seconds[u], u))
    unknown = sorted((u for u in set(units) if u not in seconds), key=lambda u: (-guess(u), u))
    loads = [(0.0, i) for i in range(count)]
    shares: list[list[str]] = [[] for _ in range(count)]
    for name in (*known, *unknown):
        load, least = heapq.heappop(loads)
        shares[least].append(name)
        heapq.heappush(loads, (load + expected(name, seconds, guess), least))
    return [tuple(share) for share in shares]


def expected(unit: str, seconds: Mapping[str, float], guess: Callable[[str], float]) -> float:
    return seconds[unit] if unit in seconds else guess(unit)


class _Guess:
    """What a unit may take that nobody has measured: the mean of its launcher, else of its tier, else of all."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        groups: dict[str, list[float]] = {}
        for name, spent in seconds.items():
            for group in self._groups(name):
                groups.setdefault(group, []).append(spent)
        self._means = {group: sum(all_) / len(all_) for group, all_ in groups.items()}

    @staticmethod
    def _groups(unit: str) -> tuple[str, str, str]:
        return unit.partition("/")[0], unit.partition(":")[0], ""

    def __call__(self, unit: str) -> float:
        return next((self._means[g] for g in self._groups(unit) if g in self._means), 1.0)


def estimate(units: Sequence[str], seconds: Mapping[str, float]) -> float:
    """Seconds that these units may take, one after another."""
    guess = _Guess(seconds)
    return sum(expected(unit, seconds, guess) for unit in units)


def learn(cells: Iterable[Cell]) -> dict[str, float]:
    """Seconds by unit: its cells, and upstream's run of the case, once."""
    own: dict[str, float] = {}
    upstream: dict[str, float] = {}
    for cell in cells:
        own[cell.unit] = own.get(cell.unit, 0.0) + cell.seconds
        upstream[cell.unit] = max(upstream.get(cell.unit, 0.0), cell.upstream or 0.0)
    return {name: round(own[name] + upstream[name], 3) for name in sorted(own)}
