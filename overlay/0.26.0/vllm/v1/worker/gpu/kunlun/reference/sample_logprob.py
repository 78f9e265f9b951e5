# SPDX-License-Identifier: Apache-2.0
"""Sites 20, 21 and 22, row by row."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.sample.logprob import LogprobTokenIdsState

_RANKS_BLOCK = 8192


def compute_token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Logit - maximum - log(sum(exp(logits - maximum))), in float32."""
    out = torch.empty(token_ids.shape, dtype=torch.float32, device=logits.device)
    for row, tokens, result in zip(logits, token_ids.tolist(), out, strict=True):
        x = row.to(torch.float32)
        largest = x.max()
        lse = torch.log(torch.exp(x - largest).sum())
        for j, token in enumerate(tokens):
            result[j] = x[token] - largest - lse
    return out


def compute_topk_scores(
    logits: torch.Tensor,
    num_logprobs: int,
    sampled_token_ids: torch.Tensor,
    cu_num_logits: list[int] | None = None,
    logprob_token_ids_state: "LogprobTokenIdsState | None" = None,
    expanded_idx_mapping: torch.Tensor | None = None,
    max_per_req_token_ids: int = 0,
    logits_mode: bool = False,
) -> "LogprobsTensors":
    """Sampled token first, then the request's own list if it has one, else the best `num_logprobs`."""
    from vllm.v1.outputs import LogprobsTensors

    best: list[list[int]] = [[] for _ in range(logits.shape[0])]
    if num_logprobs > 0:
        # Which of equal logits come first is torch.topk's choice, here as upstream.
        best = torch.topk(logits, num_logprobs, dim=-1).indices.tolist()
    lists = best
    if max_per_req_token_ids > 0:
        assert logprob_token_ids_state is not None and expanded_idx_mapping is not None
        counts = logprob_token_ids_state.num_token_ids.gpu.tolist()
        own = logprob_token_ids_state.token_ids.gpu
        lists = [
            own[request, : counts[request]].tolist() if request >= 0 and counts[request] > 0 else best[i]
            for i, request in enumerate(expanded_idx_mapping.tolist())
        ]
    num_cols = max(num_logprobs, max_per_req_token_ids)
    rows = [
        [sampled, *tokens] + [0] * (num_cols - len(tokens))
        for sampled, tokens in zip(sampled_token_ids.tolist(), lists, strict=True)
    ]
    dtype = sampled_token_ids.dtype
    if max_per_req_token_ids == 0:
        dtype = torch.promote_types(dtype, torch.int64) if num_logprobs > 0 else dtype
    token_ids = torch.tensor(rows, dtype=dtype, device=logits.device).view(logits.shape[0], 1 + num_cols)
    if num_cols == 0:
        # Upstream returns the sampled tokens themselves.
        token_ids = sampled_token_ids.unsqueeze(-1)
    if logits_mode:
        scores = torch.stack([row[tokens].to(torch.float32) for row, tokens in zip(logits, token_ids, strict=True)])
    else:
        scores = compute_token_logprobs(logits, token_ids)
    for i, tokens in enumerate(lists):
        scores[i, 1 + len(tokens) :] = float("-inf")
    return LogprobsTensors(
        logprob_token_ids=token_ids,
        logprobs=scores,
        selected_token_ranks=_ranks(logits, sampled_token_ids),
        cu_num_generated_tokens=cu_num_logits,
    )


def _ranks(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    ranks = []
    for row, token in zip(logits.tolist(), token_ids.tolist(), strict=True):
        # Upstream reads whole blocks, and -inf where the vocabulary has ended.
        padded = row + [float("-inf")] * (-len(row) % _RANKS_BLOCK)
        ranks.append(sum(value >= row[token] for value in padded))
    return torch.tensor(ranks, dtype=torch.int64, device=logits.device)
