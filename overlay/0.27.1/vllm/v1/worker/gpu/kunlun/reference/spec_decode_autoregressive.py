# SPDX-License-Identifier: Apache-2.0
"""Sites 27-29, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers


def prepare_prefill_inputs(
    # [num_reqs]
    last_token_indices: torch.Tensor,
    current_draft_step: torch.Tensor,
    input_buffers: InputBuffers,
    input_batch: InputBatch,
    # [num_reqs]
    num_sampled: torch.Tensor,
    # [num_reqs]
    num_rejected: torch.Tensor,
    # [max_num_reqs]
    last_sampled: torch.Tensor,
    # [ahead, max_num_reqs]
    next_prefill_tokens: torch.Tensor,
    max_num_reqs,
) -> torch.Tensor:
    """Copy each request's accepted tokens one place to the left, then its newest token, then its positions."""
    num_reqs = input_batch.num_reqs
    bounds = input_batch.query_start_loc.tolist()
    newest_sampled = last_sampled.reshape(-1)
    for row in range(num_reqs):
        slot = max(int(input_batch.idx_mapping[row]), 0)
        start = bounds[row]
        length = bounds[row + 1] - start - int(num_rejected[row])
        if int(num_sampled[row]) > 0:
            newest = int(newest_sampled[slot])
        else:
            newest = int(next_prefill_tokens[0, slot])
        for i in range(1, length):
            input_buffers.input_ids[start + i - 1] = input_batch.input_ids[start + i]
        input_buffers.input_ids[start + length - 1] = newest
        for i in range(length):
            input_buffers.positions[start + i] = input_batch.positions[start + i]
        last_token_indices[row] = start + length - 1
        input_buffers.query_start_loc[row] = start
        input_buffers.seq_lens[row] = input_batch.seq_lens[row]
    if num_reqs:
        current_draft_step.fill_(0)
        input_buffers.query_start_loc[num_reqs : max_num_reqs + 1] = bounds[num_reqs]
        input_buffers.seq_lens[num_reqs:max_num_reqs] = 0
        last_token_indices[num_reqs:max_num_reqs] = 0
    return last_token_indices


def prepare_decode_inputs(
    draft_tokens: torch.Tensor,
    target_seq_lens: torch.Tensor,
    num_rejected: torch.Tensor,
    input_buffers: InputBuffers,
    max_model_len: int,
    max_num_reqs: int,
    advance_draft_positions: bool = True,
):
    """One query token a request: its first draft, one position on."""
    num_reqs = draft_tokens.shape[0]
    for row in range(max_num_reqs + 1):
        input_buffers.query_start_loc[row] = min(row, num_reqs)
    input_buffers.seq_lens[num_reqs:max_num_reqs] = 0
    for row in range(num_reqs):
        input_buffers.input_ids[row] = int(draft_tokens[row])
        seq_len = int(target_seq_lens[row]) - int(num_rejected[row])
        if advance_draft_positions:
            position = int(input_buffers.positions[row]) + 1
            input_buffers.positions[row] = min(position, max_model_len - 1)
            seq_len = min(seq_len + 1, max_model_len)
        input_buffers.seq_lens[row] = seq_len


def update_draft_inputs(
    draft_tokens: torch.Tensor,
    current_draft_step: torch.Tensor,
    hidden_states: torch.Tensor,
    output_draft_tokens: torch.Tensor,
    next_input_hidden_states: torch.Tensor,
    input_buffers: InputBuffers,
    num_reqs: int,
    max_model_len: int,
    num_speculative_steps: int,
    advance_draft_positions: bool = True,
):
    """Store the step's tokens; before the last step also make them the next inputs."""
    hidden_size = hidden_states.shape[1]
    step = int(current_draft_step)
    for row in range(num_reqs):
        token = int(draft_tokens[row])
        output_draft_tokens[row, step] = token
        if step >= num_speculative_steps - 1:
            continue
        input_buffers.input_ids[row] = token
        next_input_hidden_states[row, :hidden_size] = hidden_states[row]
        if advance_draft_positions:
            input_buffers.positions[row] = min(int(input_buffers.positions[row]) + 1, max_model_len - 1)
            input_buffers.seq_lens[row] = min(int(input_buffers.seq_lens[row]) + 1, max_model_len)
