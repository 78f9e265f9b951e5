# SPDX-License-Identifier: Apache-2.0
"""Runs a trace: plan, SchedulerOutput, `execute_model`, `sample_tokens`, snapshot; again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from compare import State

from step import rig, watch
from step.mix import mix
from step.schedule import Planned, Schedule
from step.trace import Arrival, Trace


@dataclass(frozen=True)
class Seen:
    """A step as a runner took it: snapshots before sampling and after the step, what it sampled."""

    planned: Planned
    batch: State
    after: State
    sampled: Mapping[int, list[int]]


def oracle(trace: Trace) -> Iterator[Seen]:
    """Upstream's runner on a trace. What it samples decides what is scheduled next."""
    schedule = Schedule(trace)
    driver = Driver(trace, None)
    for _ in range(trace.steps):
        seen = driver.step(schedule.plan())
        schedule.ran(seen.planned, seen.sampled)
        yield seen


def name(request: int) -> str:
    return f"r{request:04d}"


class Driver:
    """A runner that takes planned steps. `variables`: of the fork, None for upstream."""

    def __init__(self, trace: Trace, variables: Mapping[str, str] | None) -> None:
        self.trace = trace
        self.arrivals = {a.request: a for a in trace.arrivals}
        self.names = {name(a.request): a.request for a in trace.arrivals}
        self.runner = rig.runner(trace.shape, variables)
        rig.watch_slots(self.runner)
        # Requests without a seed of their own draw one from here.
        np.random.seed(trace.seed % 2**32)
        torch.manual_seed(trace.seed)

    def step(self, planned: Planned) -> Seen:
        """Run one step. Raises whatever the runner raises."""
        runner, shape = self.runner, self.trace.shape
        result = runner.execute_model(scheduler_output(planned, self.arrivals))
        if not planned.scheduled:
            return Seen(planned, State(), watch.after(runner, result, None), {})
        before = watch.batch(runner.execute_model_state)
        output = runner.sample_tokens(grammar_output(planned, shape.vocab)).get_output()
        drafts = runner.take_draft_token_ids() if shape.drafts else None
        sampled = {
            self.names[req_id]: tokens for req_id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True)
        }
        return Seen(planned, before, watch.after(runner, output, drafts), sampled)


def scheduler_output(planned: Planned, arrivals: Mapping[int, Arrival]) -> Any:
    """The planned step as upstream's scheduler says it."""
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    new = [
        NewRequestData(
            req_id=name(n.request),
            prompt_token_ids=list(n.prompt),
            mm_features=[],
            sampling_params=sampling_params(arrivals[n.request]),
            pooling_params=None,
            block_ids=tuple(list(group) for group in n.blocks),
            num_computed_tokens=n.computed,
            lora_request=None,
            prefill_token_ids=list(n.prefill),
        )
        for n in planned.new
    ]
    cached = CachedRequestData(
        req_ids=[name(c.request) for c in planned.cached],
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None if c.blocks is None else tuple(list(group) for group in c.blocks) for c in planned.cached],
        num_computed_tokens=[c.computed for c in planned.cached],
        num_output_tokens=[c.output for c in planned.cached],
    )
    return SchedulerOutput(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={name(r): n for r, n in planned.scheduled.items()},
        total_num_scheduled_tokens=planned.tokens,
        scheduled_spec_decode_tokens={name(r): list(tokens) for r, tokens in planned.drafts.items()},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[0],
        finished_req_ids={name(r) for r in sorted(planned.finished)},
        free_encoder_mm_hashes=[],
        preempted_req_ids={name(r) for r in sorted(planned.preempted)},
        has_structured_output_requests=planned.structured,
    )


def sampling_params(arrival: Arrival) -> Any:
    from vllm import SamplingParams

    params = dict(arrival.params)
    words = params.pop("bad_words", None)
    if "logit_bias" in params:
        params["logit_bias"] = {int(k): v for k, v in params["logit_bias"].items()}
    made = SamplingParams(max_tokens=arrival.max_tokens, stop_token_ids=list(arrival.stop), **params)
    if words is not None:
        # Without a tokenizer they are given as tokens.
        made._bad_words_token_ids = [list(word) for word in words]
    return made


def grammar_output(planned: Planned, vocab: int) -> Any:
    """One row of the bitmask for each position of each request under a grammar; None without any."""
    from vllm.v1.core.sched.output import GrammarOutput

    if not planned.masks:
        return None
    rows = [row for seeds in planned.masks.values() for row in (bitmask(seed, vocab) for seed in seeds)]
    return GrammarOutput([name(r) for r in planned.masks], np.array(rows, dtype=np.int32))


def bitmask(seed: int, vocab: int) -> list[int]:
    """About half of the tokens may come, and one surely; int32 words."""
    words = [mix(seed, 3, i) & 0xFFFFFFFF for i in range(-(-vocab // 32))]
    sure = mix(seed, 4) % vocab
    words[sure // 32] |= 1 << sure % 32
    return [w - (1 << 32) if w >> 31 else w for w in words]


@dataclass(frozen=True)
class Difference:
    """Where the fork's run leaves upstream's: the step, before or after sampling, what differs; of the first of these
    the path and the index, if it has one."""

    step: int
    where: str
    lines: tuple[str, ...]
    first: tuple[str, tuple[int, ...] | None] | None = None

    def __str__(self) -> str:
        return f"step {self.step}, {self.where}\n  " + "\n  ".join(self.lines[:12])


def compare(want: Seen, got: Seen) -> Difference | None:
    for where, a, b in (("before sampling", want.batch, got.batch), ("after", want.after, got.after)):
        found = watch.differences(a, b)
        if found.problems:
            return Difference(want.planned.step, where, tuple(found.problems), found.first)
    return None


def follow(trace: Trace, wanted: list[Seen], variables: Mapping[str, str]) -> Difference | None:
    """The fork's runner on the steps that upstream's took; the first difference. An exception is one, too."""
    driver = Driver(trace, variables)
    for want in wanted:
        try:
            got = driver.step(want.planned)
        except Exception as e:  # noqa: BLE001 - what the fork does differently
            return Difference(want.planned.step, "raised", (f"{type(e).__name__}: {e}",))
        if (found := compare(want, got)) is not None:
            return found
    return None
