# SPDX-License-Identifier: Apache-2.0
"""Site 23: minimum probability relative to the most probable token."""

import torch

from ..vocab import pieces, row_max


def apply_min_p(logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, min_p: torch.Tensor) -> None:
    """Set to -inf, in place, every logit below its row's maximum + log(min_p); equal ones stay.

    logits [num_tokens, vocab_size], any float type; expanded_idx_mapping [num_tokens]; min_p [max_num_reqs], 0 turns
    it off. A row of no request (negative) is left alone. The logarithm is torch's: a logit within its rounding of the
    threshold may fall on the other side than upstream's.
    """
    rows = expanded_idx_mapping.clamp(min=0)
    # log(0) is -inf, and nothing is below that.
    threshold = row_max(logits).to(torch.float32) + min_p.index_select(0, rows).to(torch.float32).log_()
    threshold = threshold.masked_fill_(expanded_idx_mapping < 0, float("-inf")).unsqueeze_(1)
    for piece in pieces(*logits.shape):
        x = logits[:, piece]
        x.masked_fill_(x < threshold, float("-inf"))
