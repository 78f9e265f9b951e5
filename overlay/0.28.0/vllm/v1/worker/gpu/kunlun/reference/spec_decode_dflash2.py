# SPDX-License-Identifier: Apache-2.0
"""Sites 56 and 57, request by request and step by step."""

import torch

from .rng import philox, uniform32, uniform64


def _sample_path(self, candidate_ids: torch.Tensor, scores: torch.Tensor, num_reqs: int) -> None:
    """Each step's token is the best of the scores behind the candidate that was taken before it."""
    steps, top_k = self.num_speculative_steps, self.selector_top_k
    scores = scores.reshape(num_reqs, steps, top_k, top_k)
    candidates = candidate_ids.reshape(num_reqs, steps, top_k)
    for row in range(num_reqs):
        state = int(self.sample_idx_mapping[row * steps])
        if state < 0:
            continue
        temp = self.temperature[state].to("cpu", torch.float32)
        random = self.draft_logits is not None and float(temp) != 0.0
        previous = 0
        for step in range(steps):
            mine = scores[row, step, previous]
            self._selector_scores[row, step] = mine
            x = mine.to("cpu", torch.float64 if self.use_fp64_gumbel else torch.float32)
            ids = candidates[row, step].tolist()
            if random:
                key = philox(int(self.seeds[state]), int(self.sample_pos[row * steps + step]) - 1)[0]
                words = [philox(key, i) for i in ids]
                if self.use_fp64_gumbel:
                    noise = -torch.log(-torch.log(uniform64([(w[0], w[1]) for w in words])))
                else:
                    noise = -torch.log(-torch.log1p(-uniform32([w[0] for w in words])))
                x = x / temp + noise
            previous, best = 0, float("-inf")
            for i, value in enumerate(x.tolist()):
                if value > best:
                    previous, best = i, value
            self.draft_tokens[row, step] = ids[previous]


def _cache_draft_logits(self, candidate_ids: torch.Tensor, num_sample: int) -> None:
    """The old candidates get -inf, the new ones their scores."""
    steps, top_k = self.num_speculative_steps, self.selector_top_k
    candidates = candidate_ids.reshape(-1, top_k)
    scores = self._selector_scores.view(-1, top_k)
    for flat in range(num_sample):
        state, step = int(self.sample_idx_mapping[flat]), flat % steps
        if state < 0:
            continue
        row = self.draft_logits[state, step]
        row[self._cached_candidate_ids[state, step].to(torch.int64)] = float("-inf")
        row[candidates[flat].to(torch.int64)] = scores[flat].to(row.dtype)
        self._cached_candidate_ids[state, step] = candidates[flat]
