# SPDX-License-Identifier: Apache-2.0
"""Sites 41-44, request by request and state by state."""

from __future__ import annotations

import ctypes

import torch

from ..launchers.mamba_utils import StateTensors, _held
from ..unsupported import UnsupportedOnKunlun


def _copy_request(held: StateTensors, row: int, src_col: int, dst_col: int, bias: int) -> None:
    """Copy all states of the request in block-table row `row` from one column to another, less `bias` tokens."""
    for state, group, width, dim_first in zip(held.states, held.groups, held.widths, held.dim_first):
        table = held.block_tables[group]
        dst = int(table[row, dst_col])
        if width == 0:
            state[dst] = state[int(table[row, src_col + bias])].clone()
        elif dim_first:
            window = state[int(table[row, src_col])].clone()
            state[dst, :, : max(width - bias, 0)] = window[:, bias:]
        else:
            window = state[int(table[row, src_col])].clone()
            state[dst, : max(width - bias, 0)] = window[bias:]


def run_fused_postprocess(
    self,
    num_reqs: int,
    num_accepted_tokens_gpu: torch.Tensor,
    mamba_state_idx_gpu: torch.Tensor,
    num_scheduled_tokens_gpu: torch.Tensor,
    num_computed_tokens_gpu: torch.Tensor,
    num_draft_tokens_gpu: torch.Tensor,
) -> None:
    """Runner V1: save states where acceptance passed the end of a block."""
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    for row in range(num_reqs):
        num_accepted = int(num_accepted_tokens_gpu[row])
        src_col = int(mamba_state_idx_gpu[row])
        self.num_accepted_tokens_out[row] = num_accepted
        running = (
            int(num_computed_tokens_gpu[row]) + int(num_scheduled_tokens_gpu[row]) - int(num_draft_tokens_gpu[row])
        )
        full_blocks = (running + num_accepted - 1) // self.block_size
        bias = full_blocks * self.block_size - running
        if bias < 0:
            continue
        if src_col == full_blocks - 1:
            self.num_accepted_tokens_out[row] = 1
            if bias == 0:
                continue
        _copy_request(held, row, src_col, full_blocks - 1, bias)


def run_fused_precopy(
    self,
    num_reqs: int,
    state_idx_gpu: torch.Tensor,
    src_col_gpu: torch.Tensor,
    token_bias_gpu: torch.Tensor,
    idx_mapping: torch.Tensor | None,
) -> None:
    """Move the states of requests whose block column changed."""
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    for row in range(num_reqs):
        slot = row if idx_mapping is None else int(idx_mapping[row])
        if slot < 0:
            continue
        src_col, dst_col = int(src_col_gpu[slot]), int(state_idx_gpu[slot])
        if src_col >= 0 and src_col != dst_col:
            _copy_request(held, row, src_col, dst_col, int(token_bias_gpu[slot]))


def run_fused_postprocess_align(
    self,
    num_reqs: int,
    num_accepted_tokens_gpu: torch.Tensor,
    state_idx_gpu: torch.Tensor,
    new_num_computed_tokens_gpu: torch.Tensor,
    idx_mapping: torch.Tensor,
) -> None:
    """Save states where acceptance passed the end of a block."""
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    self.num_accepted_tokens_out.copy_(num_accepted_tokens_gpu)
    for row in range(num_reqs):
        slot = int(idx_mapping[row])
        if slot < 0:
            continue
        num_accepted = int(num_accepted_tokens_gpu[slot])
        src_col = int(state_idx_gpu[slot])
        computed = int(new_num_computed_tokens_gpu[slot])
        running = computed - num_accepted + 1
        full_blocks = computed // self.block_size
        bias = full_blocks * self.block_size - running
        if bias < 0:
            continue
        if src_col == full_blocks - 1:
            num_accepted_tokens_gpu[slot] = 1
            if bias == 0:
                continue
        _copy_request(held, row, src_col, full_blocks - 1, bias)


def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    """Copy sizes[i] bytes from address src_ptrs[i] to dst_ptrs[i]; host addresses only."""
    batch = src_ptrs.shape[0]
    assert dst_ptrs.shape[0] == batch
    assert sizes.shape[0] == batch
    if src_ptrs.device.type != "cpu":
        raise UnsupportedOnKunlun("mamba state copies of runner V1 (batch_memcpy: raw addresses)")
    for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist()):
        ctypes.memmove(dst, src, size)
