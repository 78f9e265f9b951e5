# SPDX-License-Identifier: Apache-2.0
"""Site 38: grammar bitmasks."""

import contextlib
import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..vocab import pieces

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch


def apply_grammar_bitmask(
    self,
    logits: torch.Tensor,
    input_batch: "InputBatch",
    grammar_req_ids: list[str],
    grammar_bitmask: np.ndarray,
) -> None:
    """Set to -inf, in place, the tokens that the grammar of a row forbids (their bit is 0).

    logits [num_logits, vocab_size]; grammar_bitmask int32 [n, ceil(vocab_size / 32)], the rows of the requests in
    grammar_req_ids, in that order, as many as each was scheduled logits; the device alone knows how many of these it
    has (adaptive verification), and the masks behind them mask nothing. Tokens behind the bitmask are forbidden. Copies
    go through `self.copy_stream` as upstream's do, and through pinned memory only where the platform can pin.
    Memory: 4 bytes for 2**20 elements.
    """
    if not grammar_req_ids:
        return
    row_of = {req_id: i for i, req_id in enumerate(input_batch.req_ids)}
    counts = np.diff(input_batch.cu_num_logits_np)
    if input_batch.num_draft_tokens_per_req is not None:
        counts = input_batch.num_draft_tokens_per_req + self.num_bonus_tokens
    mapping: list[int] = []
    for req_id in grammar_req_ids:
        i = row_of[req_id]
        mapping.extend(range(i * self.mask_stride, i * self.mask_stride + int(counts[i])))
    num_masks = grammar_bitmask.shape[0]
    assert num_masks == len(mapping)

    on_stream = logits.device.type == "cuda"
    with torch.cuda.stream(self.copy_stream) if on_stream else contextlib.nullcontext():
        bitmask = _upload(torch.from_numpy(grammar_bitmask), self.grammar_bitmask[:num_masks])
        places = _upload(torch.tensor(mapping, dtype=torch.int32), self.logits_indices[:num_masks])
    if on_stream:
        current = torch.cuda.current_stream()
        current.wait_stream(self.copy_stream)

    requests = torch.div(places, self.mask_stride, rounding_mode="floor")
    positions = places - requests * self.mask_stride
    starts = input_batch.cu_num_logits.index_select(0, requests)
    active = positions < input_batch.cu_num_logits.index_select(0, requests + 1) - starts
    rows = (starts + positions).to(torch.int64).clamp_(max=logits.shape[0] - 1)
    # A mask without a row repeats the first one that has one, row and bits; where none has, one row is written back.
    some = active.any()
    pick = torch.where(active, torch.arange(num_masks, device=rows.device), active.to(torch.uint8).argmax())
    rows = rows.index_select(0, pick)

    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    words = bitmask.shape[1]
    for piece in pieces(num_masks, logits.shape[1]):
        x = logits[:, piece]
        packed = bitmask[:, piece.start // 32 : min(-(-piece.stop // 32), words)].index_select(0, pick).unsqueeze(2)
        forbidden = packed.bitwise_right_shift(bits).bitwise_and_(1).flatten(1) == 0
        width = piece.stop - piece.start
        if forbidden.shape[1] < width:
            forbidden = torch.nn.functional.pad(forbidden, (0, width - forbidden.shape[1]), value=True)
        forbidden &= some
        x.index_copy_(0, rows, x.index_select(0, rows).masked_fill_(forbidden[:, :width], float("-inf")))

    if on_stream:
        # The copy stream must not reuse the buffers before they are read.
        self.copy_stream.wait_stream(current)


def _upload(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if _can_pin(out.device.type):
        x = x.pin_memory()
    return out.copy_(x, non_blocking=True)


@functools.cache
def _can_pin(device_type: str) -> bool:
    """Whether host memory can be pinned for the device: tried once, since no flag says so on every platform."""
    if device_type == "cpu":
        return False
    try:
        torch.empty(1, pin_memory=True)
    except RuntimeError:
        return False
    return True
