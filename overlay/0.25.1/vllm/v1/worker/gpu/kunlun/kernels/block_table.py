# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1, a launch for each KV cache group: block tables of the batch, and the slot of each of its tokens.

The tables are taken from the object: no raw addresses.
"""

import torch

from vllm.triton_utils import tl, triton

from ..launchers.block_table import PAD_SLOT_ID

CHUNK = 1024


@triton.jit(do_not_specialize=["num_reqs"])
def _gather(
    target, target_stride, source, source_stride, idx_mapping, num_blocks, num_reqs, width, CHUNK: tl.constexpr
):
    request = tl.program_id(0)
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


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
) -> tuple[torch.Tensor, ...]:
    """A program a row of the batch, padding rows too. See launchers/block_table.py."""
    num_reqs = idx_mapping.shape[0]
    num_blocks = self.num_blocks.gpu
    if num_reqs_padded:
        for group, (source, target) in enumerate(zip(self.block_tables, self.input_block_tables)):
            _gather[(num_reqs_padded,)](
                target, target.stride(0), source.gpu, source.gpu.stride(0), idx_mapping, num_blocks[group], num_reqs,
                target.shape[1], CHUNK=CHUNK,
            )  # fmt: skip
    return tuple(target[:num_reqs_padded] for target in self.input_block_tables)


@triton.jit(do_not_specialize=["num_reqs"])
def _slots(
    out, limit, idx_mapping, query_start_loc, positions, table, table_stride, last_block, num_reqs, cp_rank,
    SIZE: tl.constexpr, CP_SIZE: tl.constexpr, CP_INTERLEAVE: tl.constexpr, PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    # A program a request, and behind them one for each CHUNK of the buffer, which pads what no token owns.
    request = tl.program_id(0)
    if request < num_reqs:
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
    else:
        place = (request - num_reqs) * CHUNK + tl.arange(0, CHUNK)
        tokens = tl.load(query_start_loc + num_reqs)
        tl.store(out + place, PAD, mask=(place >= tokens) & (place < limit))


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
) -> torch.Tensor:
    """A program a request, and some that pad to the end of the buffer. See launchers/block_table.py."""
    num_reqs = idx_mapping.shape[0]
    limit = self.max_num_batched_tokens
    for group, source in enumerate(self.block_tables):
        table = source.gpu
        _slots[(num_reqs + triton.cdiv(limit, CHUNK),)](
            self.slot_mappings[group], limit, idx_mapping, query_start_loc, positions, table, table.stride(0),
            table.shape[1] - 1, num_reqs, self.cp_rank, SIZE=self.kernel_block_sizes[group], CP_SIZE=self.cp_size,
            CP_INTERLEAVE=self.cp_interleave, PAD=PAD_SLOT_ID, CHUNK=CHUNK,
        )  # fmt: skip
    return self.slot_mappings[:, :num_tokens_padded]
