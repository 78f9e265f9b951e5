# SPDX-License-Identifier: Apache-2.0
"""Site 38, row by row."""

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch


def apply_grammar_bitmask(
    self,
    logits: torch.Tensor,
    input_batch: "InputBatch",
    grammar_req_ids: list[str],
    grammar_bitmask: np.ndarray,
) -> None:
    """Bit by bit: 0 forbids, and so does the end of the bitmask."""
    if not grammar_req_ids:
        return
    row = 0
    for req_id in grammar_req_ids:
        i = input_batch.req_ids.index(req_id)
        scheduled = int(input_batch.cu_num_logits_np[i + 1]) - int(input_batch.cu_num_logits_np[i])
        if input_batch.num_draft_tokens_per_req is not None:
            scheduled = int(input_batch.num_draft_tokens_per_req[i]) + self.num_bonus_tokens
        start, end = input_batch.cu_num_logits[i : i + 2].tolist()
        for position in range(scheduled):
            # Upstream's buffers keep the last step's mask and places.
            self.grammar_bitmask[row] = torch.from_numpy(grammar_bitmask[row])
            self.logits_indices[row] = i * self.mask_stride + position
            if position < end - start:
                words = grammar_bitmask[row].tolist()
                words += [0] * (-(-logits.shape[1] // 32) - len(words))
                forbidden = [token for token in range(logits.shape[1]) if not (words[token // 32] >> (token % 32)) & 1]
                logits[start + position, forbidden] = float("-inf")
            row += 1
    assert row == grammar_bitmask.shape[0]
