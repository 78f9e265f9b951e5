# SPDX-License-Identifier: Apache-2.0
"""Site 31: log probabilities of a step with draft tokens, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..ragged import segment_ids
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
    """Log probabilities of the sampled tokens and of the top ones, a row for each row of logits; None if unwanted.

    sampled [num_reqs, S + 1], num_sampled [num_reqs], cu_num_logits [num_reqs + 1]; the rows of rejected drafts are reported for token 0.
    """
    if max_num_logprobs == NO_LOGPROBS:
        return None

    num_reqs = cu_num_logits.shape[0] - 1
    num_logits = logits.shape[0]
    rows = segment_ids(cu_num_logits, num_reqs, num_logits)
    step = torch.arange(num_logits, device=sampled.device) - cu_num_logits.index_select(0, rows)
    token = sampled[rows, step.clamp(max=sampled.shape[1] - 1)]
    flat_sampled = torch.where(step < num_sampled.index_select(0, rows), token, 0)
    expanded_logits = num_logits != num_reqs
    return compute_topk_scores(
        logits,
        max_num_logprobs,
        flat_sampled,
        cu_num_logits_np.tolist() if expanded_logits else None,
        logits_mode=self.sampler.logprobs_mode in ("raw_logits", "processed_logits"),
    )
