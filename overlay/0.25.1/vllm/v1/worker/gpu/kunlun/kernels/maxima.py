# SPDX-License-Identifier: Apache-2.0
"""The first maximum of rows as wide as a vocabulary, found by many programs and brought together by few.

Of equal values the lowest id wins, NaN counts as -inf, a row of -inf gives 0, as in the launchers.
"""

import torch

from vllm.triton_utils import tl, triton

# Columns of a program.
BLOCK = 2048


@triton.jit
def first_maximum(value, first):
    """Largest element of a block, NaN as -inf, and its id; `first` is that of the block's first element."""
    value = tl.where(value == value, value, float("-inf"))
    best, index = tl.max(value, axis=0, return_indices=True)
    return best, first + index


@triton.jit
def block_maxima(best, ids, logits, logits_stride, vocab, num_blocks, BLOCK: tl.constexpr):
    """Maximum and id of each block of each row: logits [rows, vocab] -> best, ids [rows, num_blocks]."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    value = tl.load(logits + row * logits_stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
    maximum, token = first_maximum(value, first)
    place = row * num_blocks + tl.program_id(1)
    tl.store(best + place, maximum)
    tl.store(ids + place, token)


@triton.jit
def row_maxima(out, best, ids, num_blocks, WIDTH: tl.constexpr):
    """The id of each row's maximum, int64, from its blocks'."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, WIDTH)
    value = tl.load(best + row * num_blocks + block, mask=block < num_blocks, other=float("-inf"))
    winner = tl.argmax(value, axis=0)
    tl.store(out + row, tl.load(ids + row * num_blocks + winner).to(tl.int64))


def room(rows: int, vocab: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(best float32, ids int32, blocks a row): memory for the blocks' maxima."""
    num_blocks = triton.cdiv(vocab, BLOCK)
    best = torch.empty(rows, num_blocks, dtype=torch.float32, device=device)
    return best, torch.empty_like(best, dtype=torch.int32), num_blocks
