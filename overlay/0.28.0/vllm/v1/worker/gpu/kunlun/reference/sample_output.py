# SPDX-License-Identifier: Apache-2.0
"""Site 55, bit by bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors


def from_logits(cls, logits: torch.Tensor, num_sampled_tokens: torch.Tensor) -> SamplingMaskTensors:
    """Bit i of byte j stands for token 8 * j + i."""
    num_reqs, vocab_size = logits.shape
    packed = torch.zeros((num_reqs, -(-vocab_size // 8)), dtype=torch.uint8, device=logits.device)
    counts = torch.zeros(num_reqs, dtype=torch.int32, device=logits.device)
    for row in range(num_reqs):
        if int(num_sampled_tokens[row]) <= 0:
            continue
        kept = [token for token, logit in enumerate(logits[row].tolist()) if math.isfinite(logit)]
        counts[row] = len(kept)
        bits = [0] * packed.shape[1]
        for token in kept:
            bits[token // 8] |= 1 << (token % 8)
        packed[row] = torch.tensor(bits, dtype=torch.uint8)
    return cls(packed, counts, vocab_size)
