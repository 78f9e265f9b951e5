# SPDX-License-Identifier: Apache-2.0
"""Sites 41-44: copies of mamba states between blocks, in torch.

Upstream's kernels get raw addresses. Here the copies go through the tensors behind them, which the context has to
hold: `hold_tensors` is called by the runner's `preprocess_state` when the first batch meets the context. What nobody
handed over as a tensor is refused with UnsupportedOnKunlun:

- `batch_memcpy` (44), a list of addresses and sizes; only runner V1 calls it;
- the other sites with a context that holds no tensors; only runner V1's (41) is set up like that.

Shapes may not depend on the device, so every request's block is copied at every step, also where no request crosses a
block: the requests with nothing to copy repeat the copy of one that has, or copy one block onto itself. Upstream's
kernel returns early there; a native operator is the remedy where this shows. Temporaries take at most
CHUNK_BYTES, or one request's block of one state if that is larger, three times for convolution states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..unsupported import UnsupportedOnKunlun

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

CHUNK_BYTES = 64 << 20
# Same width, so that bits are copied whatever they mean.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class StateTensors:
    """What upstream's address tables of a context point to, in the same order.

    states [num_blocks, ...] as integers of the same width; groups: each state's mamba group; widths: window of a
    convolution state, 0 for a temporal one; dim_first: a convolution state is [num_blocks, dim, window] instead of
    [num_blocks, window, dim]. block_tables [max_num_reqs, max_num_blocks] and num_blocks: one for each group.
    """

    states: tuple[torch.Tensor, ...]
    groups: tuple[int, ...]
    widths: tuple[int, ...]
    dim_first: tuple[bool, ...]
    block_tables: tuple[torch.Tensor, ...]
    num_blocks: tuple[int, ...]


def hold_tensors(
    ctx: Any,
    kv_cache_config: KVCacheConfig,
    forward_context: dict[str, Any],
    block_tables: list[torch.Tensor],
) -> None:
    """Give an initialised MambaSpecDecodeGPUContext the tensors behind its addresses; nothing the second time.

    Takes what `initialize_from_forward_context` takes. block_tables may be slices of the persistent tables. Reads the
    window widths off the device: one host sync in the life of an engine.
    """
    if getattr(ctx, "kunlun_tensors", None) is not None or not ctx.is_initialized:
        return
    states: list[torch.Tensor] = []
    groups: list[int] = []
    for group, group_id in enumerate(ctx.mamba_group_ids):
        for layer_name in kv_cache_config.kv_cache_groups[group_id].layer_names:
            for state in forward_context[layer_name].kv_cache:
                states.append(state.view(_BITS[state.element_size()]))
                groups.append(group)
    max_num_reqs = ctx.num_accepted_tokens_out.shape[0]
    ctx.kunlun_tensors = StateTensors(
        states=tuple(states),
        groups=tuple(groups),
        widths=tuple(ctx.state_conv_widths.tolist()[: len(states)]),  # sync-ok: once in the life of an engine
        dim_first=tuple(
            rows > 0
            for rows in ctx.state_dim_row_count.tolist()[: len(states)]  # sync-ok: once in the life of an engine
        ),
        block_tables=tuple(_whole_table(table, max_num_reqs) for table in block_tables),
        num_blocks=tuple(
            min(s.shape[0] for s, g in zip(states, groups) if g == group) for group in range(len(block_tables))
        ),
    )


def _whole_table(table: torch.Tensor, max_num_reqs: int) -> torch.Tensor:
    """The persistent table that `table` is the first rows of: later batches may be larger than the first one."""
    stride = table.stride(0)
    elements = table.untyped_storage().nbytes() // table.element_size() - table.storage_offset()
    rows = min(max_num_reqs, (elements - table.shape[1]) // stride + 1)
    return table.as_strided((rows, table.shape[1]), table.stride())


def _held(ctx: Any) -> StateTensors:
    held = getattr(ctx, "kunlun_tensors", None)
    if held is None:
        raise UnsupportedOnKunlun(
            "mamba state copies of runner V1 (mamba_cache_mode=align with speculative decoding): "
            "its context has raw addresses only"
        )
    return held


def _copy_blocks(
    held: StateTensors,
    num_reqs: int,
    active: torch.Tensor,
    src_col: torch.Tensor,
    dst_col: torch.Tensor,
    bias: torch.Tensor,
) -> None:
    """Copy every active request's states from block column src_col to dst_col, less `bias` tokens; all [num_reqs]."""
    largest = max(s[0].numel() * s.element_size() for s in held.states)
    step = max(1, CHUNK_BYTES // max(largest, 1))
    for first in range(0, num_reqs, step):
        part = slice(first, min(first + step, num_reqs))
        _copy_rows(held, first, active[part], src_col[part], dst_col[part], bias[part])


def _copy_rows(
    held: StateTensors,
    first: int,
    active: torch.Tensor,
    src_col: torch.Tensor,
    dst_col: torch.Tensor,
    bias: torch.Tensor,
) -> None:
    # Inactive rows repeat an active row's copy, bytes and all, so that it does not matter which of them lands last.
    # Without an active row they all copy one block onto itself.
    some = active.any()
    pick = torch.where(active, torch.arange(active.shape[0], device=active.device), active.to(torch.int32).argmax())
    rows = pick + first
    dst = dst_col.index_select(0, pick)
    src = torch.where(some, src_col.index_select(0, pick), dst)
    shift = torch.where(some, bias.index_select(0, pick), 0).clamp_(min=0)
    blocks = []
    for table, num_blocks in zip(held.block_tables, held.num_blocks):
        last_col = table.shape[1] - 1
        blocks.append(
            [
                table[rows, cols.clamp(0, last_col)].to(torch.int64).clamp_(0, num_blocks - 1)
                for cols in (dst, src, src + shift)
            ]
        )
    for state, group, width, dim_first in zip(held.states, held.groups, held.widths, held.dim_first):
        dst_block, src_block, accepted_block = blocks[group]
        if width == 0:
            # The accepted speculative column holds the whole state.
            new = state.index_select(0, accepted_block)
        else:
            # state[src][shift:] -> state[dst][: width - shift], along the window; the rest of dst stays.
            at = torch.arange(width, device=state.device) + shift.unsqueeze(1)
            inside = at < width
            at = at.clamp_(max=width - 1)
            if dim_first:
                at = at.unsqueeze(1).expand(-1, state.shape[1], -1)
                moved = state.index_select(0, src_block).gather(2, at)
                inside = inside.unsqueeze(1)
            else:
                moved = state[src_block.unsqueeze(1), at]
                inside = inside.unsqueeze(2)
            new = torch.where(inside, moved, state.index_select(0, dst_block))
        state.index_copy_(0, dst_block, new)


def _accepted_block(
    num_accepted: torch.Tensor, src_col: torch.Tensor, running: torch.Tensor, computed: torch.Tensor, block: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the state of the last full block has to go: (needs copy, stays in its column, dst column, bias)."""
    aligned = torch.div(computed, block, rounding_mode="floor") * block
    needs_copy = aligned >= running
    dst_col = torch.div(aligned, block, rounding_mode="floor") - 1
    return needs_copy, src_col == dst_col, dst_col, aligned - running


def run_fused_postprocess(
    self,
    num_reqs: int,
    num_accepted_tokens_gpu: torch.Tensor,
    mamba_state_idx_gpu: torch.Tensor,
    num_scheduled_tokens_gpu: torch.Tensor,
    num_computed_tokens_gpu: torch.Tensor,
    num_draft_tokens_gpu: torch.Tensor,
) -> None:
    """Runner V1: save states at the last full block after acceptance; arrays in batch order, [>= num_reqs].

    self.num_accepted_tokens_out[:num_reqs] gets the accepted counts, 1 where the state stays in its column.
    Raises UnsupportedOnKunlun for a context that holds no tensors.
    """
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    num_accepted = num_accepted_tokens_gpu[:num_reqs]
    src_col = mamba_state_idx_gpu[:num_reqs]
    running = num_computed_tokens_gpu[:num_reqs] + num_scheduled_tokens_gpu[:num_reqs] - num_draft_tokens_gpu[:num_reqs]
    needs_copy, stays, dst_col, bias = _accepted_block(
        num_accepted, src_col, running, running + num_accepted - 1, self.block_size
    )
    self.num_accepted_tokens_out[:num_reqs].copy_(torch.where(needs_copy & stays, 1, num_accepted))
    active = needs_copy & ~(stays & (bias == 0))
    _copy_blocks(held, num_reqs, active, src_col, dst_col, bias)


def run_fused_precopy(
    self,
    num_reqs: int,
    state_idx_gpu: torch.Tensor,
    src_col_gpu: torch.Tensor,
    token_bias_gpu: torch.Tensor,
    idx_mapping: torch.Tensor | None,
) -> None:
    """Before the forward: move each request's states to its new block column where that changed.

    State arrays [max_num_reqs], idx_mapping [num_reqs] with -1 for rows to skip (None: the arrays are in batch order);
    src_col -1: fresh, nothing to move.
    Raises UnsupportedOnKunlun for a context that holds no tensors.
    """
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    if idx_mapping is None:
        idx_mapping = torch.arange(num_reqs, device=src_col_gpu.device)
    idx_mapping = idx_mapping[:num_reqs]
    slots = idx_mapping.clamp(min=0)
    src_col = src_col_gpu.index_select(0, slots)
    dst_col = state_idx_gpu.index_select(0, slots)
    active = (idx_mapping >= 0) & (src_col >= 0) & (src_col != dst_col)
    _copy_blocks(held, num_reqs, active, src_col, dst_col, token_bias_gpu.index_select(0, slots))


def run_fused_postprocess_align(
    self,
    num_reqs: int,
    num_accepted_tokens_gpu: torch.Tensor,
    state_idx_gpu: torch.Tensor,
    new_num_computed_tokens_gpu: torch.Tensor,
    idx_mapping: torch.Tensor,
) -> None:
    """After acceptance: save states at the last full block; arrays [max_num_reqs], idx_mapping as in the pre-copy.

    num_accepted_tokens_gpu becomes 1 in place where a state stays in its column. Every state is copied by the count
    from before that, which self.num_accepted_tokens_out keeps as upstream's snapshot.
    Raises UnsupportedOnKunlun for a context that holds no tensors.
    """
    if num_reqs == 0 or not self.is_initialized:
        return
    held = _held(self)
    self.num_accepted_tokens_out.copy_(num_accepted_tokens_gpu)
    idx_mapping = idx_mapping[:num_reqs]
    slots = idx_mapping.clamp(min=0)
    num_accepted = num_accepted_tokens_gpu.index_select(0, slots)
    src_col = state_idx_gpu.index_select(0, slots)
    computed = new_num_computed_tokens_gpu.index_select(0, slots)
    needs_copy, stays, dst_col, bias = _accepted_block(
        num_accepted, src_col, computed - num_accepted + 1, computed, self.block_size
    )
    needs_copy &= idx_mapping >= 0
    # Skipped rows share slot 0 with a real one, so add: nothing for them.
    num_accepted_tokens_gpu.index_add_(0, slots, torch.where(needs_copy & stays, 1 - num_accepted, 0))
    active = needs_copy & ~(stays & (bias == 0))
    _copy_blocks(held, num_reqs, active, src_col, dst_col, bias)


def batch_memcpy(src_ptrs, dst_ptrs, sizes):
    """Refused: a list of raw addresses has no tensor behind it. Only runner V1 asks for this."""
    raise UnsupportedOnKunlun("mamba state copies of runner V1 (batch_memcpy: raw addresses)")
