# SPDX-License-Identifier: Apache-2.0
"""Site 30: inputs of a dflash or dspark draft, in torch. Called once for each KV-cache group that has draft layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..ragged import segment_ids

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

# vllm.v1.attention.backends.utils.PAD_SLOT_ID
PAD_SLOT_ID = -1
# Block 0 of a cache belongs to nobody: a sliding window that has moved on leaves it in a table.
NULL_BLOCK = 0


def _slots(block_table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """KV slots of `positions` (int64) in the block-table rows `rows`, which broadcasts against them.

    A position past a row's table reads the row's last block, as upstream does; one in the null block has no slot.
    """
    blocks = torch.div(positions, block_size, rounding_mode="floor").clamp_(0, block_table.shape[1] - 1)
    numbers = block_table[rows, blocks]
    slots = torch.add(positions.remainder(block_size), numbers, alpha=block_size)
    return slots.masked_fill_(numbers == NULL_BLOCK, PAD_SLOT_ID)


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
    """Lay out num_query_per_req query tokens a request behind its accepted context, and the context's own slots.

    Rejected tokens of the context have position 0 and no slot. The first query token is the newest
    token of the request, the others the mask token. sample_from_anchor (dspark): every query position predicts the next
    one (num_query_per_req = N); otherwise the first is the bonus token and only the N behind it are sampled.
    Everything is padded to max_num_reqs (slots: to max_num_tokens) for graph replay. temperature and seeds
    [max_num_reqs] get the batch's rows of input_temperature and input_seeds, which have other addresses at each step.
    """
    num_reqs = input_batch.num_reqs
    assert num_reqs > 0
    num_tokens = input_batch.num_tokens
    num_queries = num_reqs * num_query_per_req
    device = block_table.device
    bounds = input_batch.query_start_loc[: num_reqs + 1]
    idx_mapping = input_batch.idx_mapping[:num_reqs]
    # No row is negative on a real batch; 0 keeps the reads inside the state if one ever is.
    slots = idx_mapping.clamp(min=0)

    # Context.
    token_rows = segment_ids(bounds, num_reqs, num_tokens)
    valid_end = bounds[1:] - num_rejected[:num_reqs]
    rejected = torch.arange(num_tokens, device=device) >= valid_end.index_select(0, token_rows)
    positions = input_batch.positions[:num_tokens].masked_fill(rejected, 0)
    context_positions[:num_tokens].copy_(positions)
    context_slots = _slots(block_table, token_rows, positions, block_size).masked_fill_(rejected, PAD_SLOT_ID)
    context_slot_mapping[:num_tokens].copy_(context_slots)

    # Queries. A request with no valid context at the very start of the batch would read position -1.
    last_valid = (valid_end - 1).clamp_(min=0)
    next_position = input_batch.positions.index_select(0, last_valid) + 1
    query = torch.arange(num_queries, device=device).view(num_reqs, num_query_per_req)
    query_positions = next_position.unsqueeze(1) + query[0]
    newest = torch.where(
        num_sampled[:num_reqs] > 0,
        last_sampled.reshape(-1).index_select(0, slots).to(torch.int32),
        next_prefill_tokens[0].index_select(0, slots),
    )
    input_ids = input_buffers.input_ids[:num_queries].view_as(query)
    input_ids.fill_(parallel_drafting_token_id)
    input_ids[:, 0].copy_(newest)
    torch.clamp(
        query_positions,
        max=max_model_len - 1,
        out=input_buffers.positions[:num_queries].view_as(query),
    )
    query_rows = torch.arange(num_reqs, device=device).unsqueeze(1)
    query_slot_mapping[:num_queries].view_as(query).copy_(_slots(block_table, query_rows, query_positions, block_size))
    query_slot_mapping[num_queries:max_num_tokens].fill_(PAD_SLOT_ID)

    # Samples.
    first = 0 if sample_from_anchor else 1
    sampled_per_req = num_query_per_req - first
    num_samples = num_reqs * num_speculative_steps
    max_samples = max_num_reqs * num_speculative_steps
    for buffer, values, padding in (
        (sample_indices, query[:, first:], 0),
        (sample_pos, query_positions[:, first:] + 1 if sample_from_anchor else query_positions[:, first:], 0),
        (sample_idx_mapping, idx_mapping.unsqueeze(1).expand(num_reqs, sampled_per_req), -1),
    ):
        buffer[:num_samples].view(num_reqs, num_speculative_steps)[:, :sampled_per_req].copy_(values)
        buffer[num_samples:max_samples].fill_(padding)

    # Per request.
    states = slots.to(torch.int64)
    temperature.index_copy_(0, states, input_temperature.index_select(0, states))
    seeds.index_copy_(0, states, input_seeds.index_select(0, states))
    starts = torch.arange(0, (max_num_reqs + 1) * num_query_per_req, num_query_per_req, device=device)
    input_buffers.query_start_loc[: max_num_reqs + 1].copy_(starts.clamp_(max=num_queries))
    input_buffers.seq_lens[:num_reqs].copy_((next_position + num_query_per_req).clamp_(max=max_model_len))
    input_buffers.seq_lens[num_reqs:max_num_reqs].zero_()
