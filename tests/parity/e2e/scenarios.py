# SPDX-License-Identifier: Apache-2.0
"""What the tier asks of engines: `python -m e2e.scenarios DEVICE` prints it as JSON. No vLLM and no torch here.

A scenario is one engine and the cases that it is asked, one after another. What a case must be equal to is its
oracles: `v1`, upstream's runner V1 without drafts, to the text; `v2`, upstream's runner V2 on its own Triton kernels,
to the counters of drafts. `known` is an answer that follows from how the model was made. `ranges` say that what the
case is about happened: counter -> [least, most or null]; of each oracle that has the counter, and of the fork.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from e2e import chain

Call = dict[str, Any]

FOUR, EIGHT = chain.prompts(4), chain.prompts(8)
LONG = chain.prompts(8, seed="long", longest=120)
# One beginning of two blocks of 32 tokens, eight ends.
SHARED = [chain.prompts(1, seed="beginning", longest=200)[0][:70] + ids[:9] for ids in EIGHT]
STEPS = 4
SEEDS = [0, 1, 7, 2**31, 2**63 - 1, 5, 5, 123456789]


@dataclass(frozen=True)
class Case:
    """`calls`: in a row. `unlike`: a case of the scenario whose tokens the oracle's must differ from. `known`: per call
    {"tokens", "counters"}."""

    name: str
    calls: tuple[Call, ...]
    oracles: tuple[str, ...] = ("v1",)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    unlike: str | None = None
    known: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Scenario:
    """`llm`: arguments of the engine; `draft` among them is left out for V1. `ranks`: in processes of their own.
    `cannot`: why it cannot run on this device; its cases are told as skipped."""

    name: str
    llm: dict[str, Any]
    cases: tuple[Case, ...]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    cannot: str | None = None


def call(prompts: list[Any], **params: Any) -> Call:
    return {"prompts": prompts, "params": params}


def case(name: str, *calls: Call, oracles: str = "v1", **more: Any) -> Case:
    return Case(name, calls, tuple(oracles.split()), **more)


BOTH = "v1 v2"


def scenarios() -> Iterator[Scenario]:
    yield from _plain()
    yield from _drafts()


def _plain() -> Iterator[Scenario]:
    # Three layers of two heads: 1.5 KiB a token, 48 KiB a block of 32. Twelve blocks hold four of these requests.
    tight = {"block_size": 32, "kv_cache_memory_bytes": 12 * 48 << 10}
    yield Scenario("plain", {"model": "dense"}, (
        case("greedy", call(EIGHT, max_tokens=32), oracles=BOTH),
        case("seeded", _seeded(16), oracles="v2", unlike="greedy"),
    ))  # fmt: skip
    yield Scenario("preemption", {"model": "dense", **tight}, (
        case("greedy", call(EIGHT, max_tokens=90), ranges={"num_preemptions": (1, None)}),
    ))  # fmt: skip


def _seeded(length: int) -> Call:
    return {"prompts": EIGHT, "params": [{"temperature": 0.9, "seed": seed, "max_tokens": length} for seed in SEEDS]}


def _drafts() -> Iterator[Scenario]:
    for draft in ("exact", "half", "never", "bonus"):
        llm = {"model": "chain", "draft": {"model": f"draft-{draft}"}}
        yield Scenario(f"dspark {draft}", llm, (
            case("known answer", call(EIGHT, max_tokens=32), oracles="v1 v2", known=(_known(EIGHT, draft, 32),)),
        ))  # fmt: skip


def _known(prompts: list[list[int]], draft: str, length: int) -> dict[str, Any]:
    expected = chain.acceptance(prompts, draft, length, STEPS)
    return {
        "tokens": [chain.continuation(ids, length) for ids in prompts],
        "counters": {
            "num_drafts": expected.rounds,
            "num_draft_tokens": expected.drafted,
            "num_accepted_tokens": expected.accepted,
            "num_accepted_tokens_per_pos": list(expected.by_position),
        },
    }


def main(device: str) -> None:
    if device != "cpu":
        raise SystemExit(f"no scenarios for {device}")
    print(json.dumps([asdict(scenario) for scenario in scenarios()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
