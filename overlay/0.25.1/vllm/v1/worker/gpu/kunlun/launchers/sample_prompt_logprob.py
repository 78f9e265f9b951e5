# SPDX-License-Identifier: Apache-2.0
"""Site 26: the tokens whose log-probabilities a prompt's positions give."""

import torch

from ..ragged import segment_ids


def get_prompt_logprobs_token_ids(
    num_tokens: int,
    query_start_loc: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    all_token_ids: torch.Tensor,
) -> torch.Tensor:
    """The token after each scheduled one, int64 [num_tokens].

    query_start_loc [> num_reqs]: request r owns tokens query_start_loc[r] to query_start_loc[r + 1]; idx_mapping
    [num_reqs]; num_computed_tokens [max_num_reqs]; all_token_ids [max_num_reqs, max_model_len]. Tokens behind the
    last request get an arbitrary token (upstream leaves them uninitialised), and so does the last position of a
    request that fills its row (upstream reads out of it); no one uses either.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs == 0:
        return torch.zeros(num_tokens, dtype=torch.int64, device=idx_mapping.device)
    owner = segment_ids(query_start_loc, num_reqs, num_tokens).clamp_(max=num_reqs - 1)
    request = idx_mapping.index_select(0, owner).clamp_(min=0)
    # Place of the next token minus place in the batch: one number a request.
    shift = num_computed_tokens.index_select(0, idx_mapping.clamp(min=0)) + 1 - query_start_loc[:num_reqs]
    column = torch.arange(num_tokens, device=owner.device) + shift.index_select(0, owner)
    column.clamp_(0, all_token_ids.shape[1] - 1)
    return all_token_ids[request, column].to(torch.int64)
