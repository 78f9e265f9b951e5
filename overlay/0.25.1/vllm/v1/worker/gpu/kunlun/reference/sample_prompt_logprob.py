# SPDX-License-Identifier: Apache-2.0
"""Site 26, row by row."""

import torch


def get_prompt_logprobs_token_ids(
    num_tokens: int,
    query_start_loc: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    all_token_ids: torch.Tensor,
) -> torch.Tensor:
    """The token after each scheduled one; 0 where there is none."""
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=idx_mapping.device)
    starts = query_start_loc.tolist()
    for i, request in enumerate(idx_mapping.tolist()):
        if request < 0:
            continue
        known = all_token_ids[request].tolist()
        for j in range(starts[i + 1] - starts[i]):
            place = int(num_computed_tokens[request]) + 1 + j
            if place < len(known):
                token_ids[starts[i] + j] = known[place]
    return token_ids
