# SPDX-License-Identifier: Apache-2.0
"""Site 4: local sequence lengths of decode context parallelism."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from harness import N_RANDOM, Case, Site, fresh, ints, original, poison


def _case(name: str, lens: torch.Tensor, pad: int, size: int, rank: int, interleave: int) -> Case:
    n = len(lens)
    seq_lens = poison(n + pad)
    seq_lens[:n] = lens
    return Case(name, fresh(poison(n + pad), seq_lens, n, size, rank, interleave))


def sample(rng: random.Random, name: str = "drawn") -> Case:
    size = rng.choice([2, 3, 4, 8])
    lens = ints(rng, rng.randrange(0, 9), low=0, high=5000)
    return _case(name, lens, rng.randrange(0, 200), size, rng.randrange(size), rng.choice([1, 2, 16]))


def cases(rng: random.Random) -> Iterator[Case]:
    ramp = torch.arange(40, dtype=torch.int32)
    yield _case("one_rank_writes_nothing", ramp, 3, 1, 0, 1)
    yield _case("tail_is_zeroed_over_two_blocks", ramp, 150, 2, 0, 1)
    yield _case("empty_batch", ramp[:0], 5, 2, 1, 1)
    for rank in range(4):
        yield _case(f"interleave_rank{rank}", ramp, 1, 4, rank, 3)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (4,),
        lambda: original("vllm.v1.worker.gpu.cp_utils", "prepare_dcp_local_seq_lens"),
        "cp_utils:prepare_dcp_local_seq_lens",
        cases,
        sample,
    ),
)
