# SPDX-License-Identifier: Apache-2.0
"""Makes traces from seeds. Neither torch nor vLLM here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from step.mix import Draws
from step.trace import ABORT, BUDGET, DRAFTS, PREEMPT, RESET, Arrival, Event, Shape, Trace, shape

# Scenario -> engine. Each has what the others lack.
SCENARIOS: dict[str, Shape] = {
    path.stem: shape(json.loads(path.read_text(encoding="utf-8")))
    for path in sorted((Path(__file__).parent / "scenarios").glob("*.json"))
}

# Some share of requests has each of these; several may meet.
_GREEDY: dict[str, Any] = {"temperature": 0.0}


def generate(scenario: str, seed: int, steps: int) -> Trace:
    """A trace of `steps` steps; equal arguments make equal traces everywhere."""
    engine = SCENARIOS[scenario]
    draws = Draws(seed, sum(ord(c) << 8 * (i % 4) for i, c in enumerate(scenario)))
    arrivals: list[Arrival] = []
    events: list[Event] = []
    step = 0
    while step < steps:
        # Quiet times, in which the engine runs dry, and crowds.
        for _ in range(draws.choice((0, 1, 1, 1, 2, 5)) if step else 4):
            arrivals.append(_arrival(draws, engine, len(arrivals), step, arrivals))
        events += _events(draws, engine, step, len(arrivals))
        step += 25 if draws.chance(2) else draws.choice((1, 1, 1, 2, 2, 3))
    return Trace(scenario, seed, steps, engine, tuple(arrivals), tuple(events))


def _arrival(draws: Draws, shape: Shape, request: int, step: int, before: list[Arrival]) -> Arrival:
    # One token, about a block, about a step's budget and more.
    prompt = draws.choice((1, draws.between(2, 12), draws.between(14, 18), draws.between(30, 60)))
    shares, shared = None, 0
    if before and len(shape.groups) == 1 and draws.chance(35):
        shares = before[-1 - draws.below(min(4, len(before)))].request
        shared = draws.choice((16, 17, 32, 33))
        prompt = draws.choice((1, prompt))
    return Arrival(
        request=request,
        step=step,
        prompt=prompt,
        max_tokens=draws.choice((1, 2, draws.between(3, 12), draws.between(8, 25), draws.between(20, 45))),
        params=_params(draws, shape),
        stop=tuple(sorted({draws.below(shape.vocab) for _ in range(2)})) if draws.chance(30) else (),
        grammar=draws.chance(20),
        shares=shares,
        shared=shared,
    )


def _params(draws: Draws, shape: Shape) -> dict[str, Any]:
    params: dict[str, Any] = dict(_GREEDY)
    if draws.chance(50):
        params["temperature"] = draws.choice((1.0, 0.7, 1.3, 2.0))
        if draws.chance(75):
            params["seed"] = draws.below(2**31) if draws.chance(80) else 2**62 + draws.below(1000)
        if draws.chance(25):
            params["top_k"] = draws.between(1, 12)
        if draws.chance(25):
            params["top_p"] = draws.choice((0.3, 0.8, 0.95))
        if not shape.drafts and draws.chance(20):
            params["min_p"] = draws.choice((0.05, 0.2))
    if draws.chance(35):
        params |= draws.choice(
            (
                {"repetition_penalty": 1.25},
                {"frequency_penalty": 0.5},
                {"presence_penalty": 1.5},
                {"repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 0.25},
            )
        )
    if draws.chance(20):
        tokens = [draws.below(shape.vocab) for _ in range(5)]
        params["bad_words"] = [[tokens[0]], tokens[1:3], tokens[2:5]][: draws.between(1, 3)]
    if not shape.drafts and draws.chance(15):
        params["logit_bias"] = {str(draws.below(shape.vocab)): draws.choice((-100.0, 3.0, 100.0)) for _ in range(2)}
    if draws.chance(15):
        params["allowed_token_ids"] = sorted({draws.below(shape.vocab) for _ in range(9)})
    if draws.chance(10):
        params["min_tokens"] = 1
    if draws.chance(12):
        params["logprobs"] = draws.choice((0, 1, 3))
    if draws.chance(20):
        params["prompt_logprobs"] = draws.choice((0, 2))
    return params


def _events(draws: Draws, shape: Shape, step: int, requests: int) -> list[Event]:
    events = []
    if requests:
        recent = requests - 1 - draws.below(min(requests, 8))
        if draws.chance(12):
            events.append(Event(step, ABORT, recent))
        if draws.chance(25):
            events.append(Event(step, PREEMPT, requests - 1 - draws.below(min(requests, 8))))
        if shape.drafts and draws.chance(35):
            events.append(Event(step, DRAFTS, recent, draws.below(shape.drafts)))
    if draws.chance(15):
        events.append(Event(step, BUDGET, amount=draws.choice((1, 3, 7, 20))))
    if draws.chance(3):
        events.append(Event(step, RESET))
    return events
