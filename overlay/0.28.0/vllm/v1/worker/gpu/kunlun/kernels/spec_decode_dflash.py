# SPDX-License-Identifier: Apache-2.0
"""Site 30 in one launch: inputs of a dflash or dspark draft.

Shapes and meaning are those of launchers/spec_decode_dflash.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm.triton_utils import tl, triton

from ..launchers.spec_decode_dflash import NULL_BLOCK, PAD_SLOT_ID

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

CHUNK = 512


@triton.jit
def _slot(table, position, last_block, size, mask, PAD: tl.constexpr, NULL: tl.constexpr):
    """KV slots of positions in one row of a block table; past the table, those of its last block; PAD in block NULL."""
    block = tl.minimum(position // size, last_block)
    number = tl.load(table + block, mask=mask, other=NULL).to(tl.int64)
    return tl.where(number == NULL, PAD, number * size + position % size)


@triton.jit(do_not_specialize=["num_reqs"])
def _prepare(
    input_ids, positions, query_start_loc, seq_lens, query_slots, context_positions, context_slots, sample_indices,
    sample_pos, sample_rows, temperature, seeds, input_temperature, input_seeds, target_positions, target_start_loc,
    idx_mapping, last_sampled, next_tokens, num_sampled, num_rejected, table, table_stride, last_block, size,
    mask_token, num_reqs, num_query, num_steps, max_num_reqs, max_num_tokens, max_model_len, FIRST: tl.constexpr,
    QUERIES: tl.constexpr, PAD: tl.constexpr, NULL: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    # A program a request, and behind them one for each CHUNK of the longest buffer. FIRST: the first query position
    # that is sampled. QUERIES >= num_query.
    request = tl.program_id(0)
    if request < num_reqs:
        row = tl.load(idx_mapping + request)
        state = tl.maximum(row, 0).to(tl.int64)
        blocks = table + request.to(tl.int64) * table_stride
        start = tl.load(target_start_loc + request)
        end = tl.load(target_start_loc + request + 1)
        valid_end = end - tl.load(num_rejected + request)
        for first in range(start, end, CHUNK):
            place = first + tl.arange(0, CHUNK)
            inside, valid = place < end, place < valid_end
            position = tl.load(target_positions + place, mask=valid, other=0)
            tl.store(context_positions + place, position, mask=inside)
            tl.store(context_slots + place, _slot(blocks, position, last_block, size, valid, PAD, NULL), mask=inside)

        # A request with no valid context at the very start of the batch would read position -1.
        last_valid = tl.maximum(valid_end - 1, 0)
        following = tl.load(target_positions + last_valid) + 1
        if tl.load(num_sampled + request) > 0:
            newest = tl.load(last_sampled + state).to(tl.int32)
        else:
            newest = tl.load(next_tokens + state).to(tl.int32)
        query = tl.arange(0, QUERIES)
        asked = query < num_query
        spot = request * num_query + query
        after = following + query
        tl.store(input_ids + spot, tl.where(query == 0, newest, mask_token), mask=asked)
        tl.store(positions + spot, tl.minimum(after, max_model_len - 1), mask=asked)
        tl.store(query_slots + spot, _slot(blocks, after, last_block, size, asked, PAD, NULL), mask=asked)

        sampled = asked & (query >= FIRST) & (query - FIRST < num_steps)
        sample = request * num_steps + query - FIRST
        tl.store(sample_indices + sample, spot, mask=sampled)
        tl.store(sample_pos + sample, after + (1 - FIRST), mask=sampled)
        tl.store(sample_rows + sample, row, mask=sampled)
        tl.store(seq_lens + request, tl.minimum(following + num_query, max_model_len))
        tl.store(temperature + state, tl.load(input_temperature + state))
        tl.store(seeds + state, tl.load(input_seeds + state))
    else:
        # For replays of a graph: rows behind the batch have no length, no slot, and a sample of no request.
        entry = (request - num_reqs) * CHUNK + tl.arange(0, CHUNK)
        queries = num_reqs * num_query
        tl.store(query_start_loc + entry, tl.minimum(entry * num_query, queries), mask=entry <= max_num_reqs)
        tl.store(seq_lens + entry, 0, mask=(entry >= num_reqs) & (entry < max_num_reqs))
        tl.store(query_slots + entry, PAD, mask=(entry >= queries) & (entry < max_num_tokens))
        unused = (entry >= num_reqs * num_steps) & (entry < max_num_reqs * num_steps)
        tl.store(sample_indices + entry, 0, mask=unused)
        tl.store(sample_pos + entry, 0, mask=unused)
        tl.store(sample_rows + entry, -1, mask=unused)


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
    """A program a request, and some that pad the buffers to their end."""
    num_reqs = input_batch.num_reqs
    assert num_reqs > 0
    longest = max(max_num_reqs + 1, max_num_reqs * num_speculative_steps, max_num_tokens)
    _prepare[(num_reqs + triton.cdiv(longest, CHUNK),)](
        input_buffers.input_ids, input_buffers.positions, input_buffers.query_start_loc, input_buffers.seq_lens,
        query_slot_mapping, context_positions, context_slot_mapping, sample_indices, sample_pos, sample_idx_mapping,
        temperature, seeds, input_temperature, input_seeds, input_batch.positions, input_batch.query_start_loc,
        input_batch.idx_mapping, last_sampled, next_prefill_tokens, num_sampled, num_rejected, block_table,
        block_table.stride(0), block_table.shape[1] - 1, block_size, parallel_drafting_token_id, num_reqs,
        num_query_per_req, num_speculative_steps, max_num_reqs, max_num_tokens, max_model_len,
        FIRST=0 if sample_from_anchor else 1, QUERIES=triton.next_power_of_2(num_query_per_req), PAD=PAD_SLOT_ID,
        NULL=NULL_BLOCK, CHUNK=CHUNK,
    )  # fmt: skip
