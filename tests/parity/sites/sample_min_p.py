# SPDX-License-Identifier: Apache-2.0
"""Site 23: minimum probability. The mask is compared bit by bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, Case, Site, floats, fresh, original, poison

MODULE = "vllm.v1.worker.gpu.sample.min_p"
INF = float("inf")


def _case(name: str, logits: torch.Tensor, idx: Sequence[int], min_p: Sequence[float]) -> Case:
    return Case(name, fresh(logits, torch.tensor(idx, dtype=torch.int32), torch.tensor(min_p)))


def _clear_of(logits: torch.Tensor, thresholds: Sequence[float]) -> torch.Tensor:
    """Move logits that lie within rounding of a threshold: which side they fall on is the logarithm's choice."""
    for row in logits:
        for min_p in thresholds:
            if min_p:
                threshold = float(row.max()) + math.log(min_p)
                row[(row - threshold).abs() < 1e-5] -= 0.01
    return logits


def sample(rng: random.Random, name: str = "drawn") -> Case:
    n, states = rng.randrange(1, 5), rng.randrange(1, 4)
    min_p = [rng.choice([0.0, 1.0, rng.uniform(1e-6, 1.0)]) for _ in range(states)]
    logits = _clear_of(floats(rng, n, rng.choice([1, 40, 1500])), [p for p in min_p if p != 1.0])
    idx = [rng.randrange(states) for _ in range(n)]
    case = _case(name, logits, idx, min_p)
    if rng.random() < 0.5:
        return case
    return Case(name, fresh(logits, torch.tensor(idx, dtype=torch.int64), torch.tensor(min_p)))


def cases(rng: random.Random) -> Iterator[Case]:
    x = floats(rng, 4, 2500)
    yield _case("off_rows_untouched", _clear_of(x.clone(), [0.1]), [2, 0, 1, 2], [0.1, 0.0, 0.0])
    # log(1) is exactly 0: only the maximum and its equals stay.
    x[:, [7, 2400]] = 40.0
    yield _case("strictly_below_equals_stay", x, [0, 0, 1, 1], [1.0, 0.0])
    bare = torch.full((2, 1030), -INF)
    bare[1, 1029] = 2.0
    yield _case("minus_inf_rows", bare, [0, 0], [0.5])
    odd = torch.tensor([[INF, 1.0, -INF, INF], [-0.0, 0.0, -1.0, -5.0]])
    yield _case("plus_inf_and_signed_zeros", odd, [0, 0], [0.3])
    home = poison(3, 60, dtype=torch.float32)
    home[:, 10:50] = _clear_of(floats(rng, 3, 40), [0.05, 0.2])
    yield _case("rows_apart", home[:, 10:50], [1, 0, 1], [0.05, 0.2])
    half = _clear_of(floats(rng, 3, 300), [0.0501, 0.2003]).half()
    yield _case("float16", half, [1, 0, 2], [0.0501, 0.2003, 1.0])
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (Site((23,), lambda: original(MODULE, "apply_min_p"), "sample_min_p:apply_min_p", cases, sample),)
