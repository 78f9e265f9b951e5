# SPDX-License-Identifier: Apache-2.0
"""Sites 20, 21 and 22: log-probabilities and ranks of chosen tokens.

Everything is float32. Memory: one float32 piece of at most 2**20 elements beside what upstream allocates; no
log-softmax of the vocabulary exists at any time.
"""

from typing import TYPE_CHECKING

import torch

from ..vocab import pieces

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.sample.logprob import LogprobTokenIdsState

# Lanes of upstream's rank kernel. Those behind the vocabulary hold -inf, and count for a token of -inf.
_RANKS_BLOCK = 8192


def compute_token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Log-softmax at token_ids, float32 [batch_size, num_logprobs].

    logits [batch_size, vocab_size], any float type; token_ids [batch_size, num_logprobs], inside the vocabulary. The
    sum of exponentials is taken in another order than upstream's; a row with no finite maximum gives NaN, as there.
    """
    token_ids = token_ids.to(torch.int64)
    largest = logits.amax(-1, keepdim=True).to(torch.float32)
    total = torch.zeros_like(largest)
    for piece in pieces(*logits.shape):
        # Subtracting makes the float32 copy that the exponential overwrites.
        total += (logits[:, piece] - largest).exp_().sum(-1, keepdim=True)
    chosen = logits.gather(1, token_ids).to(torch.float32)
    return chosen.sub_(largest).sub_(total.log_())


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
    """Log-probabilities of the sampled token and of the best `num_logprobs` (or of the request's own list), and ranks.

    logits [batch_size, vocab_size]; sampled_token_ids [batch_size]. With max_per_req_token_ids > 0, a request that
    has a list gets its tokens in place of the best ones, padded with token 0 and -inf. A rank counts the logits that
    are at least the sampled one's. logits_mode: the logits themselves in place of their log-probabilities.
    """
    # The result's type is upstream's, and this is the only thing that needs vLLM.
    from vllm.v1.outputs import LogprobsTensors

    assert num_logprobs >= 0
    token_ids = sampled_token_ids.unsqueeze(-1)
    best = torch.topk(logits, num_logprobs, dim=-1).indices if num_logprobs > 0 else None
    if max_per_req_token_ids == 0:
        if best is not None:
            token_ids = torch.cat((token_ids, best), dim=1)
        scores = _scores(logits, token_ids, logits_mode)
    else:
        assert logprob_token_ids_state is not None
        assert expanded_idx_mapping is not None
        num_cols = max(num_logprobs, max_per_req_token_ids)
        token_ids, valid = _fill_token_ids(
            sampled_token_ids,
            best,
            num_cols,
            expanded_idx_mapping,
            logprob_token_ids_state.num_token_ids.gpu,
            logprob_token_ids_state.token_ids.gpu,
        )
        scores = _scores(logits, token_ids, logits_mode).masked_fill_(~valid, float("-inf"))
    return LogprobsTensors(
        logprob_token_ids=token_ids,
        logprobs=scores,
        selected_token_ranks=_ranks(logits, sampled_token_ids),
        cu_num_generated_tokens=cu_num_logits,
    )


def _scores(logits: torch.Tensor, token_ids: torch.Tensor, logits_mode: bool) -> torch.Tensor:
    """What is reported of token_ids, float32 of their shape."""
    if logits_mode:
        return logits.gather(-1, token_ids).to(torch.float32)
    return compute_token_logprobs(logits, token_ids)


def _fill_token_ids(
    sampled: torch.Tensor,
    best: torch.Tensor | None,
    num_cols: int,
    idx_mapping: torch.Tensor,
    num_listed: torch.Tensor,
    listed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [batch_size, 1 + num_cols] in the sampled tokens' type, and which of them are asked for."""
    batch_size = sampled.shape[0]
    token_ids = sampled.new_zeros((batch_size, 1 + num_cols))
    valid = torch.zeros_like(token_ids, dtype=torch.bool)
    token_ids[:, 0] = sampled
    valid[:, 0] = True
    request = idx_mapping.clamp(min=0)
    count = num_listed.index_select(0, request).masked_fill_(idx_mapping < 0, 0).unsqueeze_(1)
    if best is not None:
        plain = count <= 0
        token_ids[:, 1 : 1 + best.shape[1]] = best * plain
        valid[:, 1 : 1 + best.shape[1]] = plain
    width = min(num_cols, listed.shape[1])
    own = torch.arange(width, device=listed.device) < count
    token_ids[:, 1 : 1 + width] += listed[:, :width].index_select(0, request) * own
    valid[:, 1 : 1 + width] |= own
    return token_ids, valid


def _ranks(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """How many logits of each row are at least the one of its token, int64 [batch_size]."""
    vocab_size = logits.shape[1]
    x = logits.gather(1, token_ids.to(torch.int64).unsqueeze(1))
    ranks = (x == float("-inf")).squeeze(1) * (-vocab_size % _RANKS_BLOCK)
    for piece in pieces(*logits.shape):
        ranks += (logits[:, piece] >= x).sum(-1)
    return ranks
