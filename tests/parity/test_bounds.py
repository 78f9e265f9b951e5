# SPDX-License-Identifier: Apache-2.0
"""Where upstream's kernels leave their buffers, or have nothing to run on, and the fork must not: no oracle here."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch

both = pytest.mark.parametrize("backend", ["torch", "reference"])
three = pytest.mark.parametrize("backend", ["torch", "reference", "fused"])


def _module(name: str) -> Any:
    return importlib.import_module(f"{harness.kunlun_package()}.{name}")


def _ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@three
def test_b7_deferred_count_skips_negative_rows(backend: str) -> None:
    count = harness.implementation("input_batch:post_update_num_computed_tokens", backend)
    state = _ints(10, 20, 30)
    count(_ints(-1, 0, -1, 2), state, _ints(0, 4, 5, 7, 10))
    assert state.tolist() == [11, 20, 33]


@pytest.mark.parametrize(
    ("function", "backend"),
    [
        ("post_update", "torch"),
        ("post_update_compact", "torch"),
        ("post_update", "reference"),
        ("post_update", "fused"),
    ],
)
@pytest.mark.parametrize("row", [0, 1])
def test_b9_tokens_past_max_model_len_are_dropped(function: str, backend: str, row: int) -> None:
    """Upstream spills into the next request's row; behind the last one, out of the tensor."""
    update = harness.implementation(f"input_batch:{function}", backend)
    table = torch.arange(10, dtype=torch.int32).view(2, 5)
    want = table.clone()
    want[row, 4] = 71
    total, last = _ints(4, 4), torch.zeros(2, 1, dtype=torch.int64)
    counts = torch.zeros(2, 90, dtype=torch.int32)
    sampled = torch.tensor([[71, 72, 73]])
    update(_ints(row), _ints(7, 7), last, counts, sampled, _ints(3), _ints(0), None, table, total)
    assert table.tolist() == want.tolist()
    assert total[row] == 5 and last[row, 0] == 71
    assert counts.nonzero().tolist() == [[row, 71]]


@three
def test_b9_full_row_takes_nothing(backend: str) -> None:
    update = harness.implementation("input_batch:post_update", backend)
    table = torch.arange(10, dtype=torch.int32).view(2, 5)
    total, last = _ints(5, 3), torch.full((2, 1), 8)
    update(_ints(0), _ints(7, 7), last, None, torch.tensor([[71]]), _ints(1), _ints(0), None, table, total)
    assert table.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert total.tolist() == [5, 3] and last.tolist() == [[8], [8]]


def _slot_tables(positions: torch.Tensor, backend: str) -> torch.Tensor:
    tables = SimpleNamespace(
        max_num_batched_tokens=8,
        slot_mappings=torch.full((1, 8), 5),
        block_tables=[SimpleNamespace(gpu=torch.arange(8, dtype=torch.int32).view(2, 4))],
        kernel_block_sizes=[4],
        cp_size=1,
        cp_rank=0,
        cp_interleave=1,
    )
    function = harness.implementation("block_table:compute_slot_mappings", backend)
    function(tables, _ints(1), _ints(0, 2), positions, 4)
    return tables.slot_mappings[0]


@pytest.mark.parametrize("backend", ["torch", "fused"])
@pytest.mark.parametrize("garbage", [-1, -(2**62), 2**62])
def test_stale_positions_point_nowhere(garbage: int, backend: str) -> None:
    slots = _slot_tables(torch.tensor([0, 15, garbage, garbage]), backend)
    assert slots.tolist() == [16, 31, -1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_prefill_never_reads_past_the_table(backend: str) -> None:
    """Draft slots of a prefilling row at the end of the last request's row."""
    fill = harness.implementation("input_batch:prepare_prefill_inputs", backend)
    # What lies behind it would show.
    table = torch.arange(15, dtype=torch.int32).view(3, 5)[:2]
    ids, following = torch.zeros(4, dtype=torch.int32), _ints(50, 51)
    if harness.PIN >= (0, 27):
        # A row for each token ahead, and 0 where the prefill has ended.
        following = following.unsqueeze(0)
    fill(ids, following, _ints(1), _ints(0, 4), table, _ints(0, 5), _ints(0, 3))
    assert ids[:2].tolist() == [8, 9]
    assert ids.max() <= 9
    assert following.tolist() == ([50, 51] if harness.PIN < (0, 27) else [[50, 0]])


def _meta(addresses: torch.Tensor) -> tuple[Any, ...]:
    """Upstream's, of one segment with pages of 8 elements."""
    if harness.PIN < (0, 27):
        return addresses, 8, 8, 1
    sizes = (torch.tensor([8]),) * (1 if harness.PIN < (0, 28) else 2)
    return addresses, *sizes, 1, 8, 1


@both
def test_zeroing_without_tensors_is_refused(backend: str) -> None:
    zeroer = SimpleNamespace(_meta=_meta(torch.zeros(1, dtype=torch.uint64)))
    unsupported = _module("unsupported").UnsupportedOnKunlun
    zero = harness.implementation("worker_utils:zero_block_ids", backend)
    with pytest.raises(unsupported, match="KV cache"):
        zero(zeroer, [1])
    zero(zeroer, [])


def test_caches_that_are_no_tensor_are_refused() -> None:
    zeroer = SimpleNamespace(_meta=_meta(_ints(4096, dtype=torch.int64).view(torch.uint64)))
    with pytest.raises(_module("unsupported").UnsupportedOnKunlun, match="KV cache"):
        _module("kv_segments").keep_kv_caches(zeroer, [torch.zeros(64), None])


def test_freed_caches_are_not_kept_alive() -> None:
    cache = torch.ones(64, dtype=torch.int32)
    addresses = _ints(cache.data_ptr(), dtype=torch.int64).view(torch.uint64)
    zeroer = SimpleNamespace(_meta=_meta(addresses))
    segments = _module("kv_segments")
    segments.keep_kv_caches(zeroer, [cache])
    assert [view.shape for view in segments.segments(zeroer)] == [(8, 8)]
    del cache
    with pytest.raises(RuntimeError, match="freed"):
        segments.segments(zeroer)


def test_segment_ids_of_empty_rows_and_tail() -> None:
    ids = _module("ragged").segment_ids(_ints(0, 0, 3, 3, 4, 4), 5, 6)
    assert ids.tolist() == [1, 1, 1, 3, 5, 5]
    assert _module("ragged").segment_ids(_ints(0), 0, 2).tolist() == [0, 0]


def test_flat_is_a_window_not_a_copy() -> None:
    flat = _module("ragged").flat
    table = torch.zeros(3, 8)[1:, 2:5]
    flat(table)[table.stride(0) + 1] = 7
    assert table.tolist() == [[0, 0, 0], [0, 7, 0]]
    assert flat(table).shape == (8 + 3,)
    assert flat(table[:0]).shape == (0,)
    vector = torch.zeros(4)
    assert flat(vector) is vector
