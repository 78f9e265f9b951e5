# SPDX-License-Identifier: Apache-2.0
"""Sites 56 and 57 (since 0.28.0): dflash2's walk through the candidates of a draft. Bit by bit.

On a GPU upstream's division is not exact; tokens may not differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.spec_decode.dflash2.speculator"
STATES, VOCAB = 6, 60


def _speculator(
    rng: random.Random,
    rows: Sequence[int],
    steps: int,
    top_k: int,
    temps: Sequence[float] | None,
    fp64: bool,
    dtype: torch.dtype,
    pad: int,
) -> Any:
    """The fields that the two methods use; rows: the state of each request (-1: none); temps None: greedy drafts."""
    n = len(rows) + pad
    cached = torch.stack([torch.randperm(VOCAB, generator=torch.Generator().manual_seed(rng.randrange(99)))[:top_k]
                          for _ in range(STATES * steps)])  # fmt: skip
    mapping = torch.tensor([row for row in rows for _ in range(steps)] + [-1] * (pad * steps), dtype=dtype)
    return SimpleNamespace(
        num_speculative_steps=steps,
        selector_top_k=top_k,
        use_fp64_gumbel=fp64,
        sample_pos=torch.cat([ints(rng, len(rows) * steps, low=1, high=2**33, dtype=torch.int64), poison(pad * steps)]),
        sample_idx_mapping=mapping,
        temperature=torch.tensor([(temps or [0.5])[i % len(temps or [0])] for i in range(STATES)]),
        seeds=ints(rng, STATES, low=-(2**63), high=2**63, dtype=torch.int64),
        draft_tokens=poison(n, steps, dtype=torch.int64),
        draft_logits=None if temps is None else poison(STATES, steps, VOCAB, dtype=torch.float32),
        _selector_scores=poison(n, steps, top_k, dtype=torch.float32),
        _cached_candidate_ids=cached.view(STATES, steps, top_k),
    )


def _candidates(rng: random.Random, n: int, steps: int, top_k: int) -> torch.Tensor:
    """Distinct in each step."""
    drawn = [rng.sample(range(VOCAB), top_k) for _ in range(n * steps)]
    return torch.tensor(drawn, dtype=torch.int64).view(n, steps, top_k)


def _walk(
    rng: random.Random,
    name: str,
    rows: Sequence[int],
    steps: int = 3,
    top_k: int = 5,
    temps: Sequence[float] | None = (0.7, 0.0, 1.3),
    fp64: bool = False,
    dtype: torch.dtype = torch.int32,
    scores: torch.Tensor | None = None,
    pad: int = 2,
    score_dtype: torch.dtype = torch.float32,
) -> Case:
    n = len(rows)
    self = _speculator(rng, rows, steps, top_k, temps, fp64, dtype, pad)
    given = floats(rng, n, steps, top_k, top_k) if scores is None else scores
    return Case(name, fresh(self, _candidates(rng, n, steps, top_k), given.to(score_dtype), n))


def walk_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = [row if rng.random() < 0.8 else -1 for row in rng.sample(range(STATES), rng.randrange(1, STATES))]
    temps = rng.choice([None, (0.0,), (0.3, 0.0, 1.0, 1.9)])
    kind = rng.choice([torch.int32, torch.int64])
    return _walk(rng, name, rows, rng.randrange(1, 6), rng.choice([1, 2, 4, 7]), temps, rng.random() < 0.3, kind)


def walk_cases(rng: random.Random) -> Iterator[Case]:
    yield _walk(rng, "greedy_drafts", [2, 0, 5], temps=None)
    yield _walk(rng, "random_and_greedy_requests", [2, 0, 1, 4])
    yield _walk(rng, "fp64", [2, 0, 1, 4], fp64=True)
    yield _walk(rng, "rows_of_no_request", [-1, 3, -1, 0])
    yield _walk(rng, "no_row_has_a_request", [-1, -1])
    yield _walk(rng, "one_candidate", [1, 0], top_k=1)
    yield _walk(rng, "one_step", [1, 0], steps=1)
    yield _walk(rng, "ties_take_the_first", [1, 4], temps=(0.0,), scores=torch.zeros(2, 3, 5, 5))
    dead = floats(rng, 2, 3, 5, 5)
    dead[0, 1] = float("-inf")
    yield _walk(rng, "all_minus_inf", [1, 4], scores=dead)
    odd = floats(rng, 2, 3, 5, 5)
    odd[0, 0, 0, 2], odd[1, 0, 0, 1:] = float("inf"), float("-inf")
    yield _walk(rng, "infinite_scores", [1, 4], temps=(0.0,), scores=odd)
    yield _walk(rng, "bfloat16_scores", [1, 4, 0], score_dtype=torch.bfloat16)
    for i in range(N_RANDOM):
        yield walk_sample(rng, f"random{i}")


def _cache(
    rng: random.Random,
    name: str,
    rows: Sequence[int],
    steps: int = 3,
    top_k: int = 5,
    dtype: torch.dtype = torch.int32,
    again: bool = False,
) -> Case:
    """again: the same candidates as before."""
    n = len(rows)
    self = _speculator(rng, rows, steps, top_k, (1.0,), False, dtype, 1)
    candidates = _candidates(rng, n, steps, top_k)
    if again:
        candidates = self._cached_candidate_ids[list(rows)].flip(2).contiguous()
    return Case(name, fresh(self, candidates, n * steps))


def cache_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = [row if rng.random() < 0.8 else -1 for row in rng.sample(range(STATES), rng.randrange(1, STATES))]
    return _cache(rng, name, rows, rng.randrange(1, 5), rng.choice([1, 4, 7]), rng.choice([torch.int32, torch.int64]))


def cache_cases(rng: random.Random) -> Iterator[Case]:
    yield _cache(rng, "old_candidates_go", [2, 0, 5])
    yield _cache(rng, "the_same_candidates_again", [2, 0, 5], again=True)
    yield _cache(rng, "first_row_has_no_request", [-1, 3, 0])
    yield _cache(rng, "no_row_has_a_request", [-1, -1])
    yield _cache(rng, "one_candidate_one_step", [4], steps=1, top_k=1)
    for i in range(N_RANDOM):
        yield cache_sample(rng, f"random{i}")


SITES = (
    (
        Site(
            (56,),
            lambda: original(MODULE, "DFlash2Speculator._sample_path"),
            "spec_decode_dflash2:_sample_path",
            walk_cases,
            walk_sample,
        ),
        Site(
            (57,),
            lambda: original(MODULE, "DFlash2Speculator._cache_draft_logits"),
            "spec_decode_dflash2:_cache_draft_logits",
            cache_cases,
            cache_sample,
        ),
    )
    if PIN >= (0, 28)
    else ()
)
