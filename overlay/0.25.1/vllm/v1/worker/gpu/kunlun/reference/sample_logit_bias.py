# SPDX-License-Identifier: Apache-2.0
"""Site 19, row by row."""

import torch


def apply_logit_bias(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    pos: torch.Tensor,
    num_allowed_token_ids: torch.Tensor,
    allowed_token_ids: torch.Tensor,
    num_logit_bias: torch.Tensor,
    logit_bias_token_ids: torch.Tensor,
    logit_bias: torch.Tensor,
    min_lens: torch.Tensor,
    num_stop_token_ids: torch.Tensor,
    stop_token_ids: torch.Tensor,
) -> None:
    """Allowed tokens, then biases, then stop tokens; tokens outside the vocabulary are passed over."""
    vocab_size = logits.shape[1]
    for row, request, position in zip(logits, expanded_idx_mapping.tolist(), pos.tolist(), strict=True):
        if request < 0:
            continue
        n = int(num_allowed_token_ids[request])
        if n > 0:
            allowed = [t for t in allowed_token_ids[request, :n].tolist() if 0 <= t < vocab_size]
            kept = row[allowed].clone()
            row.fill_(float("-inf"))
            row[allowed] = kept
        n = int(num_logit_bias[request])
        for token, bias in zip(logit_bias_token_ids[request, :n].tolist(), logit_bias[request, :n], strict=True):
            if 0 <= token < vocab_size:
                row[token] = row[token] + bias
        n = int(num_stop_token_ids[request])
        if n > 0 and position + 1 < int(min_lens[request]):
            row[[t for t in stop_token_ids[request, :n].tolist() if 0 <= t < vocab_size]] = float("-inf")
