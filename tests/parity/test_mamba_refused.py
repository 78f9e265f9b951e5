# SPDX-License-Identifier: Apache-2.0
"""What the torch backend refuses of mamba: raw addresses that nobody handed over as tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import harness
import pytest
import torch
from sites import mamba_utils

CALLS = {
    "run_fused_postprocess": mamba_utils.post_sample,
    "run_fused_postprocess_align": mamba_utils.align_sample,
    "run_fused_precopy": mamba_utils.precopy_sample,
}


def _refusal() -> Any:
    return harness.importlib.import_module(f"{harness.kunlun_package()}.unsupported").UnsupportedOnKunlun


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    mamba_utils.environment()


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("function", sorted(CALLS))
def test_context_without_tensors(function: str, backend: str) -> None:
    args, _ = CALLS[function](random.Random(1)).make()
    args[0].kunlun_tensors = None
    with pytest.raises(_refusal(), match="runner V1"):
        harness.implementation(f"mamba_utils:{function}", backend)(*args)
    args[0].is_initialized = False
    harness.implementation(f"mamba_utils:{function}", backend)(*args)


def test_batch_memcpy() -> None:
    empty = torch.zeros(0, dtype=torch.uint64)
    with pytest.raises(_refusal(), match="batch_memcpy"):
        harness.implementation("mamba_utils:batch_memcpy", "torch")(empty, empty, empty)


def test_tensors_are_held_once() -> None:
    ctx, kv_cache_config, layers, tables = mamba_utils.context(3, 4)
    held = ctx.kunlun_tensors
    assert [state.data_ptr() for state in held.states] == ctx.state_base_addrs.tolist()
    assert [table.data_ptr() for table in held.block_tables] == ctx.block_table_ptrs.tolist()
    assert all(table.shape == tables[0].shape for table in held.block_tables)
    harness.implementation("mamba_utils:hold_tensors", "torch")(ctx, kv_cache_config, layers, tables)
    assert ctx.kunlun_tensors is held
