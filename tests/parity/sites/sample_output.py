# SPDX-License-Identifier: Apache-2.0
"""Site 55 (since 0.28.0): the tokens that a row could have sampled, packed into bits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, original, poison

MODULE = "vllm.v1.worker.gpu.sample.output"
INF = float("inf")


def _case(name: str, logits: torch.Tensor, sampled: Sequence[int], transposed: bool = False) -> Case:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors

        home = logits.t().contiguous().t() if transposed else logits.clone()
        return (SamplingMaskTensors, home, torch.tensor(sampled, dtype=torch.int32)), {}

    return Case(name, make)


def _masked(rng: random.Random, rows: int, vocab: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return floats(rng, rows, vocab, dtype=dtype).masked_fill(floats(rng, rows, vocab) > 0, -INF)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    rows, vocab = rng.randrange(1, 5), rng.choice([1, 8, 17, 300])
    return _case(name, _masked(rng, rows, vocab), [rng.randrange(3) for _ in range(rows)], rng.random() < 0.3)


def cases(rng: random.Random) -> Iterator[Case]:
    odd = _masked(rng, 3, 21)
    odd[0, [0, 7, 8, 20]] = torch.tensor([INF, float("nan"), -INF, 1e38])
    yield _case("odd_logits", odd, [1, 1, 1])
    yield _case("requests_that_sampled_nothing", _masked(rng, 4, 19), [0, 2, 0, 1])
    yield _case("whole_bytes", _masked(rng, 2, 64), [1, 1])
    yield _case("nothing_and_everything", torch.stack([torch.full((30,), -INF), torch.zeros(30)]), [1, 1])
    yield _case("more_than_one_block_of_8192", _masked(rng, 2, 8300), [1, 3])
    yield _case("more_than_one_piece", _masked(rng, 40, 27001), [1] * 40)
    yield _case("columns_apart", _masked(rng, 3, 50), [1, 0, 1], transposed=True)
    yield _case("bfloat16", _masked(rng, 2, 40, torch.bfloat16), [1, 1])
    yield _case("empty_batch", poison(0, 40, dtype=torch.float32), [])
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    (
        Site(
            (55,),
            lambda: original(MODULE, "SamplingMaskTensors.from_logits"),
            "sample_output:from_logits",
            cases,
            sample,
        ),
    )
    if PIN >= (0, 28)
    else ()
)
