# SPDX-License-Identifier: Apache-2.0
"""Site 13: positions of multi-dimensional rotary embeddings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from harness import N_RANDOM, Case, Site, cumulative, original, poison

MODULE = "vllm.v1.worker.gpu.mm.rope"
MAX, COLUMNS = 6, 40
SKIP = ("arg0.prefill_positions.write_*", "arg0.prefill_delta.pool")


def _case(
    name: str,
    rows: Sequence[tuple[int, int, int]],
    idx: Sequence[int] = (4, 0, 5, 2),
    *,
    dims: int = 3,
    delta: Sequence[int] = (0, -3, 7, 0, 12, -1),
    dtype: torch.dtype = torch.int32,
    qsl_pad: int = 0,
    stale: int = 4,
    columns: int = COLUMNS,
) -> Case:
    """rows: (tokens in this step, computed, prefill length)."""
    n = len(rows)
    idx_mapping = torch.tensor(idx[:n], dtype=dtype)
    lens = [r[0] for r in rows]

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        from vllm.v1.worker.gpu.mm.rope import RopeState

        state = RopeState(dims, dims == 3, MAX, sum(lens) + stale, columns, torch.device("cpu"))
        staged = state.prefill_positions.gpu
        staged.copy_(torch.arange(staged.numel(), dtype=torch.int32).view_as(staged) + 5000)
        state.positions.copy_(poison(*state.positions.shape, dtype=torch.int64))
        state.prefill_delta.np[:] = delta
        state.prefill_delta.copy_to_uva()
        known, computed = poison(MAX), poison(MAX)
        for request, row in zip(idx, rows, strict=False):
            computed[request], known[request] = row[1], row[2]
        return (state, idx_mapping.clone(), cumulative(lens, n + 1 + qsl_pad), known, computed), {}

    return Case(name, make, skip=SKIP)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = []
    for _ in range(rng.randrange(0, MAX + 1)):
        n = rng.choice([0, 1, 1, 4])
        rows.append((n, rng.randrange(0, COLUMNS - n + 1), rng.randrange(0, COLUMNS + 1)))
    return _case(
        name,
        rows,
        rng.sample(range(MAX), len(rows)),
        dims=rng.choice([3, 4]),
        delta=[rng.randrange(-9, 10) for _ in range(MAX)],
        dtype=rng.choice([torch.int32, torch.int64]),
        qsl_pad=rng.randrange(3),
        stale=rng.randrange(6),
    )


def cases(rng: random.Random) -> Iterator[Case]:
    mixed = [(1, 20, 12), (5, 0, 20), (0, 3, 9), (4, 12, 12)]
    yield _case("prefill_takes_staged_decode_counts_on", mixed)
    yield _case("four_dimensions", mixed, dims=4)
    yield _case("int64_rows", mixed, dtype=torch.int64)
    yield _case("query_start_loc_padded", mixed, qsl_pad=3)
    yield _case("the_column_behind_the_last_is_kept", mixed, stale=0)
    yield _case("a_step_that_leaves_the_prefill", [(6, 8, 10)])
    yield _case("rows_at_max_model_len", [(4, 36, 40), (1, 39, 12)], (MAX - 1, 0))
    yield _case("longer_than_a_triton_block", [(1, 30, 9), (1100, 5, 1200)], columns=1200)
    yield _case("empty_batch", [])
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (13,),
        lambda: original(MODULE, "RopeState.prepare_positions"),
        "mm_rope:prepare_positions",
        cases,
        sample,
    ),
)
