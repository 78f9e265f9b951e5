# SPDX-License-Identifier: Apache-2.0
"""Site 55: which tokens a row could have sampled, as bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..vocab import pieces

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors


def from_logits(cls, logits: torch.Tensor, num_sampled_tokens: torch.Tensor) -> SamplingMaskTensors:
    """`cls` of (bits, counts, vocab_size): the tokens of finite logits, of the requests that sampled any.

    logits [num_reqs, vocab_size]; num_sampled_tokens [num_reqs]. Bits: uint8 [num_reqs, ceil(vocab_size / 8)], the
    lowest first; counts int32 [num_reqs]. Memory: 5 bytes an element of one piece of 2**20.
    """
    num_reqs, vocab_size = logits.shape
    packed = torch.empty((num_reqs, (vocab_size + 7) // 8), dtype=torch.uint8, device=logits.device)
    counts = torch.zeros(num_reqs, dtype=torch.int32, device=logits.device)
    sampled = (num_sampled_tokens > 0).unsqueeze(1)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    for piece in pieces(num_reqs, vocab_size):
        keep = logits[:, piece].isfinite().logical_and_(sampled)
        counts += keep.sum(1, dtype=torch.int32)
        missing = -keep.shape[1] % 8
        bits = torch.nn.functional.pad(keep, (0, missing)).unflatten(1, (-(-keep.shape[1] // 8), 8)).to(torch.uint8)
        packed[:, piece.start // 8 : (piece.stop + 7) // 8] = (bits << shifts).sum(2, dtype=torch.uint8)
    return cls(packed, counts, vocab_size)
