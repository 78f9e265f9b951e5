# SPDX-License-Identifier: Apache-2.0
"""Site 31: log probabilities of a step with draft tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from harness import N_RANDOM, PIN, Case, Site, cumulative, floats, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
# The sum of exponentials is taken in another order.
LOGPROBS = {"ret[1]": (1e-5, 1e-5)}


class Logprobs:
    """Upstream's sampling states, of which one number is asked."""

    def __init__(self, num_logprobs: int) -> None:
        self.num_logprobs = num_logprobs

    def max_num_logprobs(self, idx_mapping_np: np.ndarray) -> int:
        return self.num_logprobs


def _case(
    rng: random.Random,
    name: str,
    drafts: Sequence[int],
    taken: Sequence[int],
    steps: int = 4,
    vocab: int = 50,
    num_logprobs: int = 3,
    mode: str = "raw_logprobs",
) -> Case:
    """drafts: draft tokens a request; taken: tokens it sampled, at most one more. mode: of logprobs (0.26.0)."""
    n, rows = len(drafts), sum(d + 1 for d in drafts)
    sampled = poison(n, steps + 1, dtype=torch.int64)
    for row, count in enumerate(taken):
        sampled[row, :count] = ints(rng, count, low=0, high=vocab, dtype=torch.int64)
    cu_num_logits = cumulative([d + 1 for d in drafts])
    batch = SimpleNamespace(
        idx_mapping=torch.arange(n, dtype=torch.int32),
        idx_mapping_np=np.arange(n, dtype=np.int32),
        cu_num_logits=cu_num_logits,
        cu_num_logits_np=cu_num_logits.numpy().copy(),
    )
    logits = floats(rng, rows, vocab)
    count = torch.tensor(taken, dtype=torch.int32)
    self = SimpleNamespace(sampler=SimpleNamespace(sampling_states=Logprobs(num_logprobs), logprobs_mode=mode))
    return Case(
        name,
        fresh(self, batch, sampled, count, logits)
        if PIN < (0, 27)
        else fresh(self, sampled, count, logits, cu_num_logits, batch.cu_num_logits_np, num_logprobs),
        tolerance=LOGPROBS,
    )


def sample(rng: random.Random, name: str = "drawn") -> Case:
    drafts = [rng.randrange(0, 5) for _ in range(rng.randrange(1, 7))]
    taken = [rng.randrange(1, d + 2) for d in drafts]
    return _case(rng, name, drafts, taken, num_logprobs=rng.randrange(-1, 6))


def cases(rng: random.Random) -> Iterator[Case]:
    yield _case(rng, "rejected_rows_report_token_0", [4, 4, 4], [1, 3, 5])
    yield _case(rng, "ragged_with_no_drafts", [0, 3, 0, 1], [1, 2, 1, 2])
    yield _case(rng, "not_expanded", [0, 0, 0], [1, 1, 1])
    yield _case(rng, "only_the_sampled_token", [2, 1], [2, 1], num_logprobs=0)
    yield _case(rng, "not_wanted", [2, 1], [2, 1], num_logprobs=-1)
    yield _case(rng, "nothing_sampled", [2, 3], [0, 2])
    if PIN >= (0, 26):
        for mode in ("raw_logits", "processed_logits", "processed_logprobs"):
            yield _case(rng, mode, [2, 3, 0], [1, 4, 1], mode=mode)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (31,),
        lambda: original(MODULE, "RejectionSampler._get_logprobs_tensors"),
        "spec_decode_rejection_sampler:_get_logprobs_tensors",
        cases,
        sample,
        allow={"tolist": "cu_num_logits_np, a NumPy array of the host, becomes a list"},
    ),
)
