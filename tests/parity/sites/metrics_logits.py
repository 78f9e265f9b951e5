# SPDX-License-Identifier: Apache-2.0
"""Site 12: NaNs in each row of logits."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from harness import N_RANDOM, Case, Site, floats, fresh, original

INF, NAN = float("inf"), float("nan")


def _logits(rng: random.Random, rows: int, vocab: int, share: float, dtype: torch.dtype, gap: int) -> torch.Tensor:
    """[rows, vocab] with this share of NaNs, some infinities, rows `gap` apart; the gap holds NaNs too."""
    wide = floats(rng, rows, vocab + gap, dtype=dtype)
    uniform = floats(rng, rows, vocab + gap).abs() / 3
    wide[uniform < share] = NAN
    wide[uniform > 2] = -INF
    wide[:, vocab:] = NAN
    return wide[:, :vocab]


def sample(rng: random.Random, name: str = "drawn") -> Case:
    dtype = rng.choice([torch.float32, torch.float16, torch.bfloat16])
    share = rng.choice([0.0, 0.1, 0.9])
    return Case(
        name,
        fresh(_logits(rng, rng.randrange(0, 5), rng.randrange(1, 300), share, dtype, rng.randrange(3))),
    )


def cases(rng: random.Random) -> Iterator[Case]:
    yield Case("infinities_are_none", fresh(torch.tensor([[INF, -INF, NAN], [0.0, INF, 1.0], [NAN, NAN, NAN]])))
    yield Case(
        "both_signs_and_payloads",
        fresh(torch.tensor([[-4194304, 2143289345, 0]], dtype=torch.int32).view(torch.float32)),
    )
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        kind = str(dtype)[6:]
        yield Case(f"over_two_triton_blocks_{kind}", fresh(_logits(rng, 2, 9000, 0.1, dtype, 0)))
    yield Case("rows_apart_in_memory", fresh(_logits(rng, 3, 100, 0.1, torch.float32, 7)))
    yield Case("empty_batch", fresh(torch.empty(0, 64)))
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (12,),
        lambda: original("vllm.v1.worker.gpu.metrics.logits", "get_num_nans"),
        "metrics_logits:get_num_nans",
        cases,
        sample,
    ),
)
