# SPDX-License-Identifier: Apache-2.0
"""Site 31, request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .sample_logprob import compute_topk_scores

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors

# vllm.v1.worker.gpu.sample.states.NO_LOGPROBS
NO_LOGPROBS = -1


def _get_logprobs_tensors(
    self,
    sampled: torch.Tensor,
    num_sampled: torch.Tensor,
    logits: torch.Tensor,
    cu_num_logits: torch.Tensor,
    cu_num_logits_np: np.ndarray,
    max_num_logprobs: int,
) -> LogprobsTensors | None:
    """Put each request's tokens at its own rows of logits, 0 behind them, and rank them."""
    if max_num_logprobs == NO_LOGPROBS:
        return None
    num_logits = logits.shape[0]
    starts = cu_num_logits.tolist()
    flat_sampled = torch.zeros(num_logits, dtype=sampled.dtype, device=sampled.device)
    for row in range(len(starts) - 1):
        for step in range(int(num_sampled[row])):
            flat_sampled[starts[row] + step] = sampled[row, step]
    expanded_logits = num_logits != len(starts) - 1
    return compute_topk_scores(
        logits,
        max_num_logprobs,
        flat_sampled,
        cu_num_logits_np.tolist() if expanded_logits else None,
        logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
    )
