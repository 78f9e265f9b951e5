"""Which of a tier's cells a run goes through: named ones, a shard's, those that have no result yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.matrix import cells, schedule

# One collected test, as the plugin describes it: `test`, `launcher`, `case` and more.
Described = Mapping[str, Any]


@dataclass(frozen=True)
class Shard:
    """The share `index` (from 1) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard(text: str) -> Shard:
    """Of `I/N` (raises `ValueError`)."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    found = Shard(*map(int, match.groups())) if match else Shard(0, 0)
    if not 1 <= found.index <= found.count:
        raise ValueError(f"{text!r} is no shard I/N with 1 <= I <= N")
    return found


@dataclass(frozen=True)
class Selection:
    """`names`: only these cells. `seconds`: by unit, the same in all shards. `done`: tier -> names with a result."""

    names: tuple[str, ...] = ()
    shard: Shard | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    done: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def choose(self, tier: str, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of `found` that are to run, in their order.

        Raises:
            ForkError: a cell that was named is not among them.
        """
        if self.names:
            unknown = sorted(set(self.names) - {test["test"] for test in found})
            if unknown:
                raise ForkError(
                    f"no such cell in tier {tier}", details=unknown,
                    fix="name it as in the results, with the same --switches, --backend, --random and --seed",
                )  # fmt: skip
            found = [test for test in found if test["test"] in self.names]
        if self.shard is not None:
            # Recorded units count though they are not collected: a shard is what the plan says, whatever -k leaves.
            units = {unit_of(tier, test) for test in found} | self.seconds.keys()
            mine = set(schedule.divide(units, self.seconds, self.shard.count)[self.shard.index - 1])
            found = [test for test in found if unit_of(tier, test) in mine]
        done = self.done.get(tier, frozenset())
        return [test for test in found if test["test"] not in done]


def unit_of(tier: str, test: Described) -> str:
    return cells.unit(tier, test["launcher"], test["case"])


def spread(
    tier: str, tests: Sequence[dict[str, Any]], seconds: Mapping[str, float], count: int
) -> list[list[dict[str, Any]]]:
    """The tests of each of `count` processes, in their order."""
    units = {unit_of(tier, test) for test in tests}
    places = {u: i for i, share in enumerate(schedule.divide(units, seconds, count)) for u in share}
    shares: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for test in tests:
        shares[places[unit_of(tier, test)]].append(test)
    return shares
