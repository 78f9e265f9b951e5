# SPDX-License-Identifier: Apache-2.0
"""Site 30, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..launchers.spec_decode_dflash import NULL_BLOCK, PAD_SLOT_ID

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers


def prepare_dflash_inputs(
    input_buffers: InputBuffers,
    query_slot_mapping: torch.Tensor,
    context_positions: torch.Tensor,
    context_slot_mapping: torch.Tensor,
    sample_indices: torch.Tensor,
    sample_pos: torch.Tensor,
    sample_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    input_batch: InputBatch,
    # [num_reqs]
    num_sampled: torch.Tensor,
    # [num_reqs]
    num_rejected: torch.Tensor,
    # [max_num_reqs]
    last_sampled: torch.Tensor,
    # [ahead, max_num_reqs]
    next_prefill_tokens: torch.Tensor,
    # [max_num_reqs]
    input_temperature: torch.Tensor,
    # [max_num_reqs]
    input_seeds: torch.Tensor,
    # [max_num_reqs, max_num_blocks]
    block_table: torch.Tensor,
    block_size: int,
    parallel_drafting_token_id: int,
    num_query_per_req: int,
    num_speculative_steps: int,
    max_num_reqs: int,
    max_num_tokens: int,
    max_model_len: int,
    sample_from_anchor: bool = False,
) -> None:
    """Walk each request's context, then its query tokens."""
    num_reqs = input_batch.num_reqs
    assert num_reqs > 0
    bounds = input_batch.query_start_loc.tolist()
    newest_sampled = last_sampled.reshape(-1)

    def slot_of(row: int, position: int) -> int:
        block = int(block_table[row, min(position // block_size, block_table.shape[1] - 1)])
        return block * block_size + position % block_size if block != NULL_BLOCK else PAD_SLOT_ID

    for row in range(num_reqs):
        state = int(input_batch.idx_mapping[row])
        start, end = bounds[row], bounds[row + 1]
        valid_end = end - int(num_rejected[row])
        for token in range(start, end):
            position = int(input_batch.positions[token]) if token < valid_end else 0
            context_positions[token] = position
            context_slot_mapping[token] = slot_of(row, position) if token < valid_end else PAD_SLOT_ID

        last_valid = max(valid_end - 1, 0)
        next_position = int(input_batch.positions[last_valid]) + 1
        if int(num_sampled[row]) > 0:
            newest = int(newest_sampled[max(state, 0)])
        else:
            newest = int(next_prefill_tokens[0, max(state, 0)])
        for offset in range(num_query_per_req):
            query = row * num_query_per_req + offset
            position = next_position + offset
            input_buffers.input_ids[query] = newest if offset == 0 else parallel_drafting_token_id
            input_buffers.positions[query] = min(position, max_model_len - 1)
            query_slot_mapping[query] = slot_of(row, position)
            if sample_from_anchor:
                sample = row * num_speculative_steps + offset
                predicted = position + 1
            elif offset > 0:
                sample = row * num_speculative_steps + offset - 1
                predicted = position
            else:
                continue
            sample_indices[sample] = query
            sample_pos[sample] = predicted
            sample_idx_mapping[sample] = state
        temperature[max(state, 0)] = input_temperature[max(state, 0)]
        seeds[max(state, 0)] = input_seeds[max(state, 0)]
        input_buffers.query_start_loc[row] = row * num_query_per_req
        input_buffers.seq_lens[row] = min(next_position + num_query_per_req, max_model_len)

    input_buffers.query_start_loc[num_reqs : max_num_reqs + 1] = num_reqs * num_query_per_req
    input_buffers.seq_lens[num_reqs:max_num_reqs] = 0
    padding = slice(num_reqs * num_speculative_steps, max_num_reqs * num_speculative_steps)
    sample_indices[padding] = 0
    sample_pos[padding] = 0
    sample_idx_mapping[padding] = -1
    query_slot_mapping[num_reqs * num_query_per_req : max_num_tokens] = PAD_SLOT_ID
