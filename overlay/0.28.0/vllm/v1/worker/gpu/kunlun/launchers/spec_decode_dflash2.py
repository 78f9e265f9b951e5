# SPDX-License-Identifier: Apache-2.0
"""Sites 56 and 57: dflash2's walk through the candidates of a draft, and what is kept of it for verification.

N requests, S = num_speculative_steps, K = selector_top_k candidates a step.
"""

import torch

from ..rng import gumbel_noise, randint


def _source(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(whether any row has a request, a row that has one for each row, and its request); states [n], -1 for none.

    A row without a request repeats the writes of the first one that has one, value and place.
    """
    valid = states >= 0
    rows = torch.arange(states.shape[0], device=states.device)
    source = torch.where(valid, rows, valid.to(torch.uint8).argmax())
    return valid.any(), source, states.clamp(min=0).to(torch.int64).index_select(0, source)


def _sample_path(self, candidate_ids: torch.Tensor, scores: torch.Tensor, num_reqs: int) -> None:
    """Take a token a step, by the scores that follow the candidate taken before it (the first: candidate 0).

    candidate_ids [N, S, K]; scores [N, S, K, K], of candidate k behind candidate p at [..., p, k]. Writes
    self.draft_tokens [max_num_reqs, S] and the scores it chose from, self._selector_scores [max_num_reqs, S, K]; rows
    of no request (-1 in self.sample_idx_mapping) stay as they are. The noise of a token hangs on its request's seed,
    the position before the one it is drafted for, and its id.
    """
    if num_reqs == 0:
        return
    steps, top_k = self.num_speculative_steps, self.selector_top_k
    scores = scores.reshape(num_reqs, steps, top_k, top_k)
    candidates = candidate_ids.reshape(num_reqs, steps, top_k)
    states = self.sample_idx_mapping[: num_reqs * steps : steps]
    valid = (states >= 0).unsqueeze(1)
    states = states.clamp(min=0)
    temp = self.temperature.index_select(0, states).to(torch.float32).unsqueeze(1)
    if self.draft_logits is None:
        temp = torch.zeros_like(temp)
    greedy = temp == 0.0
    divisor = temp.masked_fill(greedy, 1.0)
    seeds = self.seeds.index_select(0, states)
    positions = self.sample_pos[: num_reqs * steps].view(num_reqs, steps) - 1
    previous = torch.zeros(num_reqs, 1, dtype=torch.int64, device=scores.device)
    for step in range(steps):
        mine = scores[:, step].gather(1, previous.unsqueeze(2).expand(num_reqs, 1, top_k)).squeeze(1)
        logits = mine.to(torch.float64 if self.use_fp64_gumbel else torch.float32)
        ids = candidates[:, step]
        kept = self._selector_scores[:num_reqs, step]
        kept.copy_(torch.where(valid, logits.to(kept.dtype), kept))
        if self.draft_logits is not None:
            key = randint(seeds, positions[:, step]).unsqueeze(1)
            noise = gumbel_noise(key, ids.to(torch.int64), self.use_fp64_gumbel)
            logits = noise.masked_fill_(greedy, 0.0).add_(logits / divisor)
        previous = logits.nan_to_num(float("-inf"), float("inf"), float("-inf")).max(1, keepdim=True).indices
        drafts = self.draft_tokens[:num_reqs, step : step + 1]
        drafts.copy_(torch.where(valid, ids.gather(1, previous).to(drafts.dtype), drafts))


def _cache_draft_logits(self, candidate_ids: torch.Tensor, num_sample: int) -> None:
    """Let self.draft_logits [max_num_reqs, S, V] hold the scores of these candidates, and -inf for those of before.

    candidate_ids [N, S, K], num_sample = N * S. self._cached_candidate_ids [max_num_reqs, S, K] remembers which they
    are; rows of no request are left alone.
    """
    if num_sample == 0:
        return
    steps, top_k = self.num_speculative_steps, self.selector_top_k
    some, source, states = _source(self.sample_idx_mapping[:num_sample])
    step = source % steps
    place = states.unsqueeze(1), step.unsqueeze(1)
    cached, target = self._cached_candidate_ids, self.draft_logits

    def put(ids: torch.Tensor, values: torch.Tensor | float) -> None:
        old = target[(*place, ids)]
        target.index_put_((*place, ids), torch.where(some, values, old).to(target.dtype))

    put(cached[states, step], float("-inf"))
    ids = candidate_ids.reshape(-1, top_k).index_select(0, source).to(cached.dtype)
    put(ids, self._selector_scores.view(-1, top_k)[:num_sample].index_select(0, source))
    cached.index_put_((states, step), torch.where(some, ids, cached[states, step]))
