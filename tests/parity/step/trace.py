# SPDX-License-Identifier: Apache-2.0
"""A trace: what happens to an engine, from which everything else of a run follows. Neither torch nor vLLM here.

A trace has no scheduler output in it: `schedule.py` makes those from the trace and from what the runner sampled. So
any part of a trace can be left out and the rest is a trace still, which is what shrinking needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1

ABORT, PREEMPT, RESET, BUDGET, DRAFTS = KINDS = ("abort", "preempt", "reset", "budget", "drafts")


@dataclass(frozen=True)
class Shape:
    """The engine of a trace.

    max_reqs: rows of state. max_len: tokens of a request. budget: tokens of a step. blocks: in the pool, the null
    block included; groups: block size of each KV cache group. drafts: K, 0 without speculation; speculator: upstream's
    name of the method ('dspark', 'dflash', 'eagle'); bonus_anchor: dspark's 1 + K layout; probabilistic: drafts are
    drawn; method: of rejection ('standard', 'block', 'synthetic'). overlapped: outputs arrive a step late, as with
    async scheduling. buckets: token counts of graphs, () for none; not with 'eagle'. views: whether the fork's device
    sees host memory, which Kunlun's does not; upstream's always does.
    """

    max_reqs: int = 6
    max_len: int = 96
    budget: int = 48
    blocks: int = 64
    groups: tuple[int, ...] = (16,)
    vocab: int = 61
    drafts: int = 0
    speculator: str = "dspark"
    bonus_anchor: bool = False
    probabilistic: bool = False
    method: str = "standard"
    overlapped: bool = False
    buckets: tuple[int, ...] = ()
    views: bool = True

    @property
    def lookahead(self) -> int:
        """Slots beyond the scheduled tokens that the draft model writes to (upstream's `num_lookahead_tokens`)."""
        # dflash asks for the last sampled token as well.
        return self.drafts + (self.speculator == "dflash")


@dataclass(frozen=True)
class Arrival:
    """A request. `shares`: another whose prompt this one begins with, up to `shared` tokens. `params`: arguments of
    SamplingParams beside max_tokens; `stop`: tokens that end it; `grammar`: masks restrict its tokens."""

    request: int
    step: int
    prompt: int
    max_tokens: int
    params: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[int, ...] = ()
    grammar: bool = False
    shares: int | None = None
    shared: int = 0


@dataclass(frozen=True)
class Event:
    """Something that happens before a step is scheduled.

    abort: `request` is gone, wherever it is. preempt: it loses its blocks, if it runs. reset: all that run do, and may
    come back at once. budget: no more than `amount` tokens in this step. drafts: no more than `amount` of the
    request's drafts.
    """

    step: int
    kind: str
    request: int = -1
    amount: int = 0


@dataclass(frozen=True)
class Trace:
    """steps: how many are scheduled. seed: of prompts, grammar masks and the process's random numbers."""

    name: str
    seed: int
    steps: int
    shape: Shape
    arrivals: tuple[Arrival, ...]
    events: tuple[Event, ...] = ()


def shape(raw: Mapping[str, Any]) -> Shape:
    """From JSON, where tuples are lists. Raises TypeError for an unknown field."""
    return Shape(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()})


class TraceError(ValueError):
    """Not a trace; says where."""


def dumps(trace: Trace, extra: Mapping[str, Any] | None = None) -> str:
    """JSON text, one arrival or event a line. `extra` goes in beside it: what was found, how to replay it."""
    raw = asdict(trace)
    arrivals, events = raw.pop("arrivals"), raw.pop("events")
    head = json.dumps({"format": FORMAT, **(extra or {}), **raw}, indent=1)
    lists = [f' "{name}": [{_lines(items)}]' for name, items in (("arrivals", arrivals), ("events", events))]
    return head.removesuffix("\n}") + ",\n" + ",\n".join(lists) + "\n}\n"


def _lines(items: list[dict[str, Any]]) -> str:
    return "".join("\n  " + json.dumps(item) + "," for item in items).removesuffix(",")


def loads(text: str) -> Trace:
    """Raises TraceError where the text is no trace of this format."""
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise TraceError(f"a trace of format {raw['format']}, expected {FORMAT}")
        arrivals = [Arrival(**{**a, "stop": tuple(a["stop"])}) for a in raw["arrivals"]]
        events = [Event(**e) for e in raw["events"]]
        unknown = sorted({e.kind for e in events} - set(KINDS))
        if unknown:
            raise TraceError(f"no such kind of event: {', '.join(unknown)}")
        return Trace(raw["name"], raw["seed"], raw["steps"], shape(raw["shape"]), tuple(arrivals), tuple(events))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
        raise TraceError(f"not a trace: {type(e).__name__}: {e}") from e


def read(path: Path) -> Trace:
    """Raises TraceError, naming the file."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TraceError) as e:
        raise TraceError(f"{path}: {e}") from e
