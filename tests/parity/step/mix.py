# SPDX-License-Identifier: Apache-2.0
"""Numbers that are the same on every machine and in every version of Python: no random module, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """64 bits from some integers: each is taken in, then stirred (the finalizer of SplitMix64)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 30) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


class Draws:
    """A stream of numbers from a seed."""

    def __init__(self, *seed: int) -> None:
        self._seed = mix(*seed)
        self._count = 0

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        self._count += 1
        return mix(self._seed, self._count) % n

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]
