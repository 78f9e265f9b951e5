# SPDX-License-Identifier: Apache-2.0
"""Sites 17 and 18: temperature in one launch; sampling by Gumbel noise in two, the second over a few maxima a row.

Shapes and meaning are those of launchers/sample_gumbel.py. A division by a temperature and the two logarithms are
Triton's `/`, `tl.log` and `log1p` of float32, rounded as those round, so that the noise is upstream's bit for bit.
"""

import torch

from vllm.triton_utils import tl, tldevice, triton

from ..launchers import sample_gumbel as _torch
from ..rng import TINY_32
from . import maxima

WIDE = 8192


@triton.jit
def _temperature(logits, logits_stride, rows, temperature, vocab, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + token).to(tl.int64)
    value = tl.load(temperature + row, mask=row >= 0, other=0.0).to(tl.float32)
    if (value != 0.0) & (value != 1.0):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        place = logits + token * logits_stride + column
        x = tl.load(place, mask=column < vocab, other=0.0).to(tl.float32)
        tl.store(place, x / value, mask=column < vocab)


def apply_temperature(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
) -> None:
    """A program for WIDE columns of a row; rows of temperature 0 or 1, or of no request, end at once."""
    num_tokens, vocab = logits.shape
    if num_tokens:
        grid = (num_tokens, triton.cdiv(vocab, WIDE))
        _temperature[grid](logits, logits.stride(0), expanded_idx_mapping, temperature, vocab, BLOCK=WIDE)


@triton.jit
def _noisy_maxima(
    best, ids, cache, cache_stride, columns, last_column, logits, logits_stride, rows, temperature, seed, pos,
    vocab, num_blocks, DIVIDE: tl.constexpr, A_ROW: tl.constexpr, DRAW: tl.constexpr, TINY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # A_ROW: a column for each row, or one for all.
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    inside = column < vocab
    row = tl.load(rows + token).to(tl.int64)
    mine = row >= 0
    x = tl.load(logits + token * logits_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    if cache is not None:
        at = tl.load(columns + token if A_ROW else columns).to(tl.int64)
        at = tl.minimum(tl.maximum(at, 0), last_column)
        tl.store(cache + row * cache_stride + at * vocab + column, x, mask=inside & mine)
    if DIVIDE or DRAW:
        heat = tl.load(temperature + row, mask=mine, other=0.0).to(tl.float32)
        if DIVIDE:
            if heat != 0.0:
                x = x / heat
    if DRAW:
        if heat != 0.0:
            key = tl.randint(tl.load(seed + row, mask=mine, other=0), tl.load(pos + token))
            uniform = tl.maximum(tl.rand(key, column), TINY)
            noise = -tl.log(-tldevice.log1p(-uniform))
            x = tl.where(inside, x + noise, float("-inf"))
    maximum, winner = maxima.first_maximum(x, first)
    place = token * num_blocks + tl.program_id(1)
    tl.store(best + place, maximum)
    tl.store(ids + place, winner)


def _sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    divide: bool,
    cache: torch.Tensor | None,
    columns: torch.Tensor | None,
    draw: bool,
) -> torch.Tensor:
    num_tokens, vocab = logits.shape
    out = torch.empty(num_tokens, dtype=torch.int64, device=logits.device)
    if num_tokens == 0:
        return out
    best, ids, num_blocks = maxima.room(num_tokens, vocab, logits.device)
    last_column = 0
    if cache is not None:
        assert columns is not None
        last_column = (1 + sum((n - 1) * s for n, s in zip(cache.shape[1:], cache.stride()[1:]))) // vocab - 1
    _noisy_maxima[(num_tokens, num_blocks)](
        best, ids, cache, 0 if cache is None else cache.stride(0),
        None if columns is None else columns.contiguous(), last_column, logits, logits.stride(0), rows.contiguous(),
        temperature, seed, pos.contiguous(), vocab, num_blocks, DIVIDE=divide,
        A_ROW=columns is not None and columns.dim() > 0, DRAW=draw, TINY=TINY_32, BLOCK=maxima.BLOCK,
    )  # fmt: skip
    maxima.row_maxima[(num_tokens,)](out, best, ids, num_blocks, WIDTH=triton.next_power_of_2(num_blocks), num_warps=1)
    return out


def gumbel_sample(
    logits: torch.Tensor,  # [num_tokens, vocab_size]
    expanded_idx_mapping: torch.Tensor,  # [num_tokens]
    temperature: torch.Tensor,  # [max_num_reqs]
    seed: torch.Tensor,  # [max_num_reqs]
    pos: torch.Tensor,  # [num_tokens]
    apply_temperature: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
) -> torch.Tensor:
    """A program for a block of a row's columns, and one a row. Noise of float64 is torch's business."""
    if use_fp64:
        return _torch.gumbel_sample(
            logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, logits_cache,
            logits_cache_col, use_fp64,
        )  # fmt: skip
    return _sample(
        logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, logits_cache,
        logits_cache_col, True,
    )  # fmt: skip


def gumbel_sample_greedy(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
) -> torch.Tensor:
    """The same where every row is known to be greedy."""
    return _sample(
        logits, expanded_idx_mapping, temperature, seed, pos, False, logits_cache,
        logits_cache_col, False,
    )  # fmt: skip
