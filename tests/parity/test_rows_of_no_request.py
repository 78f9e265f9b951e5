# SPDX-License-Identifier: Apache-2.0
"""Rows without a request or without context, where upstream reads in front of its buffers: no oracle, but a rule."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from sites import mamba_hybrid, sample_logprob, spec_decode_dflash

both = pytest.mark.parametrize("backend", ["torch", "reference"])
STATE = ("_mamba_state_idx_gpu", "_mamba_src_col_gpu", "_mamba_src_off_gpu", "num_accepted_tokens_gpu")


@both
def test_b7_a_skipped_row_advances_nobodys_mamba_state(backend: str) -> None:
    case = mamba_hybrid._pre(random.Random(3), "skipped", [(0, 1, 4, 1), (1, 3, 7, 4), (2, 2, 9, 3)])
    function = harness.implementation("mamba_hybrid:preprocess_state", backend)
    whole, _ = case.make()
    function(*whole)
    args, _ = case.make()
    before = {name: getattr(args[0], name).clone() for name in STATE}
    slots = args[1].idx_mapping.tolist()
    args[1].idx_mapping[1] = -1
    function(*args)
    for name in STATE:
        want = before[name]
        for row in (0, 2):
            want[slots[row]] = getattr(whole[0], name)[slots[row]]
        assert torch.equal(getattr(args[0], name), want), name


@both
def test_b7_a_row_of_no_request_has_no_list_of_logprobs(backend: str) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]] * 2)
    lists: Any = SimpleNamespace(
        num_token_ids=SimpleNamespace(gpu=torch.tensor([1, 1], dtype=torch.int32)),
        token_ids=SimpleNamespace(gpu=torch.tensor([[2, 0], [0, 0]], dtype=torch.int32)),
    )
    rows = torch.tensor([-1, 1], dtype=torch.int32)
    function = harness.implementation(f"sample_logprob:{sample_logprob.TOPK}", backend)
    result = function(logits, 2, torch.tensor([3, 3]), None, lists, rows, 2)
    assert result.logprob_token_ids[:, :2].tolist() == [[3, 1], [3, 0]]
    assert result.logprob_token_ids[0].tolist() == [3, 1, 3]
    assert result.logprobs.isfinite().tolist() == [[True, True, True], [True, True, False]]


@pytest.mark.parametrize("backend", ["torch", "reference", "fused"])
def test_b13_no_valid_context_at_the_start_of_the_batch(backend: str) -> None:
    """The place of the last valid token is -1 there: what stands at the end of the buffer must not be taken for it."""
    case = spec_decode_dflash._case(random.Random(1), "all_rejected", [4, 3], [4, 1], [1, 2])
    args, kwargs = case.make()
    harness.implementation("spec_decode_dflash:prepare_dflash_inputs", backend)(*args, **kwargs)
    buffers, batch = args[0], next(a for a in args if hasattr(a, "idx_mapping"))
    first = int(batch.positions[0]) + 1
    assert buffers.positions[:4].tolist() == [first, first + 1, first + 2, first + 3]
