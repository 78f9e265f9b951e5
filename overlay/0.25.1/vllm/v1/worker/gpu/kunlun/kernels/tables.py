# SPDX-License-Identifier: Apache-2.0
"""Block tables of the batch and slots of its tokens, a launch for each KV cache group. No raw addresses.

Apart from the launchers (block_table.py), whose signatures are those of a release of upstream.
"""

from collections.abc import Sequence
from typing import Any

import torch

from vllm.triton_utils import tl, triton

from ..launchers.block_table import PAD_SLOT_ID

CHUNK = 1024


@triton.jit
def fill_row(
    target, target_stride, source, source_stride, idx_mapping, num_blocks, width, request, num_reqs, CHUNK: tl.constexpr
):
    """A row of the batch's table: a request's blocks, or zeros behind the last request."""
    out = target + request.to(tl.int64) * target_stride
    if request < num_reqs:
        row = tl.load(idx_mapping + request).to(tl.int64)
        used = tl.minimum(tl.load(num_blocks + row), width)
        for first in range(0, used, CHUNK):
            column = first + tl.arange(0, CHUNK)
            inside = column < used
            tl.store(out + column, tl.load(source + row * source_stride + column, mask=inside, other=0), mask=inside)
    else:
        for first in range(0, width, CHUNK):
            column = first + tl.arange(0, CHUNK)
            tl.store(out + column, 0, mask=column < width)


@triton.jit(do_not_specialize=["num_reqs"])
def _gather(
    target, target_stride, source, source_stride, idx_mapping, num_blocks, num_reqs, width, CHUNK: tl.constexpr
):
    request = tl.program_id(0)
    fill_row(target, target_stride, source, source_stride, idx_mapping, num_blocks, width, request, num_reqs, CHUNK)


def launch_gather(
    tables: Any, idx_mapping: torch.Tensor, num_reqs_padded: int, targets: Sequence[torch.Tensor]
) -> None:
    """A program a row of the batch, padding rows too. tables: upstream's BlockTables; targets: a table a group."""
    num_reqs = idx_mapping.shape[0]
    num_blocks = tables.num_blocks.gpu
    if num_reqs_padded:
        for group, (source, target) in enumerate(zip(tables.block_tables, targets)):
            _gather[(num_reqs_padded,)](
                target, target.stride(0), source.gpu, source.gpu.stride(0), idx_mapping, num_blocks[group], num_reqs,
                target.shape[1], CHUNK=CHUNK,
            )  # fmt: skip


@triton.jit
def fill_slots(
    out, idx_mapping, query_start_loc, positions, table, table_stride, last_block, request, cp_rank,
    SIZE: tl.constexpr, CP_SIZE: tl.constexpr, CP_INTERLEAVE: tl.constexpr, PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Slots of a request's tokens."""
    row = tl.load(idx_mapping + request).to(tl.int64)
    start = tl.load(query_start_loc + request)
    end = tl.load(query_start_loc + request + 1)
    for first in range(start, end, CHUNK):
        place = first + tl.arange(0, CHUNK)
        inside = place < end
        position = tl.load(positions + place, mask=inside, other=0)
        block = position // (SIZE * CP_SIZE)
        offset = position - block * (SIZE * CP_SIZE)
        entry = table + row * table_stride + tl.minimum(block, last_block)
        slot = tl.load(entry, mask=inside, other=0).to(tl.int64) * SIZE
        if CP_SIZE == 1:
            slot += offset
        else:
            turn = offset // CP_INTERLEAVE
            # Less the runs that the other ranks keep.
            slot += offset - (turn - turn // CP_SIZE) * CP_INTERLEAVE
            slot = tl.where(turn % CP_SIZE == cp_rank, slot, PAD)
        tl.store(out + place, slot, mask=inside)


@triton.jit
def pad_slots(out, limit, query_start_loc, num_reqs, chunk, PAD: tl.constexpr, CHUNK: tl.constexpr):
    """What no token owns of one chunk of the buffer."""
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    tl.store(out + place, PAD, mask=(place >= tl.load(query_start_loc + num_reqs)) & (place < limit))


@triton.jit(do_not_specialize=["num_reqs"])
def _slots(
    out, limit, idx_mapping, query_start_loc, positions, table, table_stride, last_block, num_reqs, cp_rank,
    SIZE: tl.constexpr, CP_SIZE: tl.constexpr, CP_INTERLEAVE: tl.constexpr, PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    # A program a request, and behind them one for each CHUNK of the buffer.
    request = tl.program_id(0)
    if request < num_reqs:
        fill_slots(
            out, idx_mapping, query_start_loc, positions, table, table_stride, last_block, request, cp_rank,
            SIZE, CP_SIZE, CP_INTERLEAVE, PAD, CHUNK,
        )  # fmt: skip
    else:
        pad_slots(out, limit, query_start_loc, num_reqs, request - num_reqs, PAD, CHUNK)


def launch_slots(
    tables: Any,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    limit: int,
) -> None:
    """A program a request, and some that pad to `limit`. tables: upstream's BlockTables; out [groups, >= limit]."""
    num_reqs = idx_mapping.shape[0]
    for group, source in enumerate(tables.block_tables):
        table = source.gpu
        _slots[(num_reqs + triton.cdiv(limit, CHUNK),)](
            out[group], limit, idx_mapping, query_start_loc, positions, table, table.stride(0),
            table.shape[1] - 1, num_reqs, tables.cp_rank, SIZE=tables.kernel_block_sizes[group],
            CP_SIZE=tables.cp_size, CP_INTERLEAVE=tables.cp_interleave, PAD=PAD_SLOT_ID, CHUNK=CHUNK,
        )  # fmt: skip
