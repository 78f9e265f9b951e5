# SPDX-License-Identifier: Apache-2.0
"""The head of a step in two launches: expand, positions and combine as one, gather and slot mappings as one.

The launchers of these sites leave their calls to `deferred.together`; what is not as it is in every step of upstream's
runner (a call that is missing, tensors that are not the same ones) is launched one by one, in order.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch

from vllm.triton_utils import tl, triton

from ..deferred import Calls, together
from . import input_batch, tables

EXPAND, POSITIONS, COMBINE = "expand", "positions", "combine"
GATHER, SLOTS = "gather", "slots"
ALONE = {
    EXPAND: input_batch.launch_expand,
    POSITIONS: input_batch.launch_positions,
    COMBINE: input_batch.launch_combine,
    GATHER: tables.launch_gather,
    SLOTS: tables.launch_slots,
}


def inputs() -> AbstractContextManager[None]:
    """Around upstream's `prepare_inputs` of a runner that reads none of these on the device (no DCP)."""
    return together(launch_inputs)


def attention() -> AbstractContextManager[None]:
    """Around upstream's `prepare_attn`."""
    return together(launch_attention)


@triton.jit(do_not_specialize=["num_reqs"])
def _inputs(
    rows, local_pos, pos, seq_lens, input_ids, logits_indices, idx_mapping, query_start_loc, num_computed,
    last_sampled, prefill_len, drafts, drafts_stride, cu_num_logits, num_steps, num_reqs, max_num_reqs,
    EXPAND: tl.constexpr, NEW: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    if request < num_reqs:
        row = tl.load(idx_mapping + request)
        length = input_batch.fill_positions(pos, seq_lens, query_start_loc, num_computed, request, row, CHUNK)
        if EXPAND:
            input_batch.fill_expanded(rows, local_pos, cu_num_logits, request, row, WIDTH)
        input_batch.fill_combined(
            input_ids, logits_indices, last_sampled, query_start_loc, prefill_len, drafts, drafts_stride,
            cu_num_logits, num_steps, request, row, length, NEW, WIDTH,
        )  # fmt: skip
    else:
        place = num_reqs + (request - num_reqs) * CHUNK + tl.arange(0, CHUNK)
        tl.store(seq_lens + place, 0, mask=place < max_num_reqs)


def launch_inputs(calls: Calls) -> None:
    """One launch for the calls of `prepare_inputs`."""
    names = [name for name, _ in calls]
    if names not in ([EXPAND, POSITIONS, COMBINE], [POSITIONS, COMBINE]):
        return _one_by_one(calls)
    found: dict[str, Any] = dict(calls)
    idx_mapping, query_start_loc, num_computed, pos, seq_lens = found[POSITIONS]
    (
        input_ids, logits_indices, its_mapping, last_sampled, its_start_loc, its_lens, prefill_len, drafts,
        cu_num_logits, new,
    ) = found[COMBINE]  # fmt: skip
    num_steps = drafts.shape[-1]
    width = triton.next_power_of_2(num_steps + new)
    rows = local_pos = None
    same = _same(idx_mapping, its_mapping) and _same(query_start_loc, its_start_loc) and _same(seq_lens, its_lens)
    if EXPAND in found:
        rows, local_pos, other_mapping, other_logits, longest = found[EXPAND]
        same = same and _same(idx_mapping, other_mapping) and _same(cu_num_logits, other_logits)
        width = max(width, triton.next_power_of_2(longest))
    num_reqs, max_num_reqs = idx_mapping.shape[0], seq_lens.shape[0]
    if not same or num_reqs == 0 or logits_indices.shape[0] == 0:
        return _one_by_one(calls)
    chunk = input_batch.CHUNK
    _inputs[(num_reqs + triton.cdiv(max_num_reqs - num_reqs, chunk),)](
        rows, local_pos, pos, seq_lens, input_ids, logits_indices, idx_mapping, query_start_loc, num_computed,
        last_sampled, prefill_len, drafts, drafts.stride(0), cu_num_logits, num_steps, num_reqs, max_num_reqs,
        EXPAND=rows is not None, NEW=new, WIDTH=width, CHUNK=chunk,
    )  # fmt: skip
    return None


@triton.jit(do_not_specialize=["num_reqs", "num_padded"])
def _attention(
    target, target_stride, source, source_stride, num_blocks, width, idx_mapping, query_start_loc, positions, out,
    limit, num_reqs, num_padded, cp_rank, SIZE: tl.constexpr, CP_SIZE: tl.constexpr, CP_INTERLEAVE: tl.constexpr,
    PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    # Rows of the batch with their tokens, padding rows, and then the chunks of the buffer of slots.
    request = tl.program_id(0)
    if request < num_padded:
        tables.fill_row(
            target, target_stride, source, source_stride, idx_mapping, num_blocks, width, request, num_reqs, CHUNK
        )
        if request < num_reqs:
            tables.fill_slots(
                out, idx_mapping, query_start_loc, positions, source, source_stride, width - 1, request, cp_rank,
                SIZE, CP_SIZE, CP_INTERLEAVE, PAD, CHUNK,
            )  # fmt: skip
    else:
        tables.pad_slots(out, limit, query_start_loc, num_reqs, request - num_padded, PAD, CHUNK)


def launch_attention(calls: Calls) -> None:
    """One launch for each KV cache group for the calls of `prepare_attn`."""
    if [name for name, _ in calls] != [GATHER, SLOTS]:
        return _one_by_one(calls)
    of, idx_mapping, num_padded, targets = calls[0][1]
    it, its_mapping, query_start_loc, positions, out, limit = calls[1][1]
    num_reqs = idx_mapping.shape[0]
    if of is not it or not _same(idx_mapping, its_mapping) or num_padded < num_reqs:
        return _one_by_one(calls)
    num_blocks, chunk = of.num_blocks.gpu, tables.CHUNK
    for group, (source, target) in enumerate(zip(of.block_tables, targets)):
        _attention[(num_padded + triton.cdiv(limit, chunk),)](
            target, target.stride(0), source.gpu, source.gpu.stride(0), num_blocks[group], target.shape[1],
            idx_mapping, query_start_loc, positions, out[group], limit, num_reqs, num_padded, of.cp_rank,
            SIZE=of.kernel_block_sizes[group], CP_SIZE=of.cp_size, CP_INTERLEAVE=of.cp_interleave,
            PAD=tables.PAD_SLOT_ID, CHUNK=chunk,
        )  # fmt: skip
    return None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors begin at the same place; one may be the longer."""
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype


def _one_by_one(calls: Calls) -> None:
    for name, arguments in calls:
        ALONE[name](*arguments)
