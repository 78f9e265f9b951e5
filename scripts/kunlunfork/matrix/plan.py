"""Shards of a run for machines that share nothing: each works out the same division from `ci/results/times.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.matrix import schedule
from kunlunfork.matrix.selection import Shard


@dataclass(frozen=True)
class Planned:
    """A shard's units that have been measured, and the seconds that they took, one after another."""

    shard: Shard
    units: tuple[str, ...]
    seconds: float


def plan(seconds: Mapping[str, float], tiers: tuple[str, ...], count: int) -> tuple[Planned, ...]:
    """`count` shards. Units that nobody has measured are in one of them, too: each run places them for itself, alike.

    tiers: whose units are shown; the division is that of all tiers.

    Raises:
        ForkError: nothing was recorded of these tiers.
    """
    wanted = {unit for unit in seconds if unit.partition(":")[0] in tiers}
    if not wanted:
        raise ForkError(
            f"no times are recorded of {', '.join(tiers)}", expected="ci/results/times.json",
            fix="record them from results: kunlunfork matrix plan --learn RESULTS",
        )  # fmt: skip
    shares = schedule.divide(seconds, seconds, count)
    found = []
    for i, share in enumerate(shares, 1):
        mine = tuple(unit for unit in share if unit in wanted)
        found.append(Planned(Shard(i, count), mine, round(sum(seconds[u] for u in mine), 3)))
    return tuple(found)


def as_json(planned: tuple[Planned, ...]) -> dict[str, Any]:
    return {
        "shards": [
            {"shard": str(p.shard), "seconds": p.seconds, "units": len(p.units), "names": list(p.units)}
            for p in planned
        ],
        "seconds": round(sum(p.seconds for p in planned), 3),
        "longest": max(p.seconds for p in planned),
    }


def github(planned: tuple[Planned, ...]) -> str:
    """A job matrix for `fromJSON`, on one line."""
    return json.dumps({"include": [{"shard": str(p.shard), "seconds": round(p.seconds)} for p in planned]})
