# SPDX-License-Identifier: Apache-2.0
"""Sites 14 and 15: per-step state of hybrid attention + mamba models."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from harness import N_RANDOM, Case, Site, cumulative, ints, original, poison

from sites import mamba_utils
from sites.mamba_utils import BLOCK_SIZE, COLUMNS, STATES, context, copy_functions

MODULE = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
SKIP = tuple(f"arg0._mamba_ctx.{field}" for field in mamba_utils.ADDRESSES)


def _state(align: bool) -> Any:
    """Upstream's model state with the fields that the two methods use, poisoned."""
    state: Any = object.__new__(importlib.import_module(MODULE).MambaHybridModelState)
    state._align_mode = align
    state.max_num_reqs = STATES
    state.device = torch.device("cpu")
    state.num_accepted_tokens_gpu = poison(STATES)
    if align:
        state._mamba_state_idx_gpu = poison(STATES)
        state._mamba_src_col_gpu = poison(STATES)
        state._mamba_src_off_gpu = poison(STATES)
        state._mamba_ctx = None
        state._mamba_group_ids = []
        state._mamba_spec = None
    return state


def _pre(
    rng: random.Random,
    name: str,
    rows: Sequence[tuple[int, int, int, int]],
    idx_dtype: torch.dtype = torch.int32,
    first_use: bool = False,
    align: bool = True,
    dim_first: bool = False,
) -> Case:
    """rows: (running column, accepted, computed tokens, query length) a request."""
    seed = rng.randrange(2**30)
    n = len(rows)
    slots = rng.sample(range(STATES), n)

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        ctx, kv_cache_config, layers, tables = context(seed, n, dim_first=dim_first, first_batch=max(n, 1))
        self = _state(align)
        self.vllm_config = SimpleNamespace(
            speculative_config=None, compilation_config=SimpleNamespace(static_forward_context=layers)
        )
        self.model = SimpleNamespace(get_mamba_state_copy_func=lambda: copy_functions(True))
        if align and not first_use:
            self._mamba_ctx = ctx
        computed = poison(STATES)
        for slot, (column, accepted, before, _) in zip(slots, rows, strict=True):
            if align:
                self._mamba_state_idx_gpu[slot] = column
            self.num_accepted_tokens_gpu[slot] = accepted
            computed[slot] = before
        batch = SimpleNamespace(
            num_reqs=n,
            idx_mapping=torch.tensor(slots, dtype=idx_dtype),
            query_start_loc=cumulative([row[3] for row in rows], pad_to=n + 3),
        )
        attention = poison(STATES, 4)
        passed = tuple(table[: max(n, 1)] for table in (attention, *tables))
        return (self, batch, passed, kv_cache_config, computed), {}

    skip = (*SKIP, "arg0._mamba_ctx.kunlun_tensors", "arg0._mamba_ctx#keys") if first_use else SKIP
    return Case(name, make, skip=skip)


def pre_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = []
    for _ in range(rng.randrange(1, STATES)):
        computed = rng.randrange(0, BLOCK_SIZE * (COLUMNS - 4))
        query = rng.randrange(1, BLOCK_SIZE * COLUMNS - computed)
        accepted = rng.randrange(1, 5)
        rows.append((rng.randrange(-1, COLUMNS - 4), accepted, computed, query))
    return _pre(rng, name, rows, rng.choice([torch.int32, torch.int64]), dim_first=rng.random() < 0.3)


def pre_cases(rng: random.Random) -> Iterator[Case]:
    yield _pre(rng, "crosses_into_the_next_block", [(0, 1, 4, 1), (1, 3, 7, 4), (2, 2, 9, 3)])
    yield _pre(rng, "stays_in_its_block", [(0, 2, 1, 1), (1, 4, 5, 3)])
    yield _pre(rng, "fresh_request_has_no_source", [(-1, 1, 0, 9), (-1, 1, 0, 1), (1, 1, 8, 1)])
    yield _pre(rng, "chunked_prefill_over_blocks", [(-1, 1, 0, 20), (4, 1, 20, 12)])
    yield _pre(rng, "ends_at_a_block_boundary", [(0, 1, 3, 1), (0, 1, 4, 4)])
    yield _pre(rng, "none_accepted_counts_as_no_bias", [(0, 0, 4, 1), (1, 0, 8, 2)])
    yield _pre(rng, "empty_batch", [])
    yield _pre(rng, "not_align_mode", [(0, 1, 4, 1)], align=False)
    for i in range(N_RANDOM):
        yield pre_sample(rng, f"random{i}")


def first_use_cases(rng: random.Random) -> Iterator[Case]:
    yield _pre(rng, "first_batch_of_the_engine", [(0, 2, 4, 1), (2, 1, 12, 5)], first_use=True)
    yield _pre(rng, "first_batch_dim_first", [(0, 1, 4, 1), (1, 1, 8, 1)], first_use=True, dim_first=True)


def _post(
    rng: random.Random,
    name: str,
    n: int,
    skipped: Sequence[int] = (),
    sampled: Any = None,
    idx_dtype: torch.dtype = torch.int32,
    rows: Sequence[tuple[int, int]] | None = None,
    hold: bool = True,
    align: bool = True,
) -> Case:
    """rows: (running column, computed after the step) a request, passed by the runner in any mode."""
    seed = rng.randrange(2**30)
    slots = rng.sample(range(STATES), n)
    idx = [-1 if row in skipped else slot for row, slot in enumerate(slots)]
    counts = ints(rng, n, low=0, high=6) if sampled is None else sampled

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        mamba_utils.environment()
        self = _state(align=align and rows is not None)
        args = [self, torch.tensor(idx, dtype=idx_dtype)]
        args.append(counts if isinstance(counts, int) else torch.as_tensor(counts, dtype=torch.int32).clone())
        if rows is not None:
            if hold and align:
                self._mamba_ctx = context(seed, n)[0]
            computed = poison(STATES)
            for slot, (column, after) in zip(slots, rows, strict=True):
                if align:
                    self._mamba_state_idx_gpu[slot] = column
                computed[slot] = after
            args.append(computed)
        return tuple(args), {}

    return Case(name, make, skip=SKIP)


def post_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(0, STATES)
    skipped = [row for row in range(n) if rng.random() < 0.3]
    idx_dtype = rng.choice([torch.int32, torch.int64])
    if rng.random() < 0.5:
        return _post(rng, name, n, skipped, idx_dtype=idx_dtype)
    rows, counts = [], []
    for _ in range(n):
        accepted, source, after = mamba_utils._accepted(rng, single_state=False)
        rows.append((source, after))
        counts.append(accepted)
    return _post(rng, name, n, skipped, counts, idx_dtype, rows)


def post_cases(rng: random.Random) -> Iterator[Case]:
    yield _post(rng, "B7_skipped_rows", 5, skipped=(0, 3))
    yield _post(rng, "B7_all_rows_skipped", 3, skipped=(0, 1, 2))
    yield _post(rng, "none_sampled_counts_as_one", 4, sampled=[0, 0, 3, 0])
    yield _post(rng, "one_number_for_all", 3, sampled=3, idx_dtype=torch.int64)
    yield _post(rng, "number_zero_counts_as_one", 3, sampled=0, idx_dtype=torch.int64)
    yield _post(rng, "empty_batch", 0)
    yield _post(rng, "align_saves_full_blocks", 3, sampled=[4, 0, 2], rows=[(2, 9), (0, 3), (1, 9)])
    yield _post(rng, "align_skipped_rows", 3, (1,), [4, 1, 2], rows=[(2, 9), (1, 8), (1, 9)])
    yield _post(rng, "align_before_the_first_batch", 2, sampled=[1, 2], rows=[(0, 5), (1, 8)], hold=False)
    yield _post(rng, "not_align_mode", 2, sampled=[4, 0], rows=[(2, 9), (0, 3)], align=False)
    for i in range(N_RANDOM):
        yield post_sample(rng, f"random{i}")


def _upstream(method: str) -> Any:
    return lambda: original(MODULE, f"MambaHybridModelState.{method}")


SITES = (
    Site((14,), _upstream("preprocess_state"), "mamba_hybrid:preprocess_state", pre_cases, pre_sample),
    Site(
        (14,),
        _upstream("preprocess_state"),
        "mamba_hybrid:preprocess_state",
        first_use_cases,
        allow={
            "tolist": "once an engine: the window widths, when the first batch meets the context",
            "numpy": "upstream's own staging buffers for runner V1, made on the host",
        },
    ),
    Site((15,), _upstream("postprocess_state"), "mamba_hybrid:postprocess_state", post_cases, post_sample),
)
