# SPDX-License-Identifier: Apache-2.0
"""Sites 20, 21 and 22: log-probabilities, custom token lists, ranks.

Token ids, ranks and which entries are -inf are exact. A log-probability is allowed 4e-6: exp, log and the order of
the sum differ from NumPy's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.sample.logprob"
INF = float("inf")
CLOSE = (1e-6, 4e-6)
# Since 0.26.0 it can give logits too, and says so by its name.
LOGITS_MODE = PIN >= (0, 26)
TOPK = "compute_topk_scores" if LOGITS_MODE else "compute_topk_logprobs"


def _chosen(name: str, logits: torch.Tensor, tokens: torch.Tensor) -> Case:
    return Case(name, fresh(logits, tokens), tolerance={"ret": CLOSE})


def chosen_sample(rng: random.Random, name: str = "drawn") -> Case:
    n, vocab = rng.randrange(1, 5), rng.choice([1, 30, 1500])
    dtype = rng.choice([torch.int32, torch.int64])
    logits = floats(rng, n, vocab, scale=rng.choice([0.1, 3.0, 30.0]))
    return _chosen(name, logits, ints(rng, n, rng.randrange(1, 9), low=0, high=vocab, dtype=dtype))


def chosen_cases(rng: random.Random) -> Iterator[Case]:
    x = floats(rng, 3, 2100)
    tokens = ints(rng, 3, 4, low=0, high=2100, dtype=torch.int64)
    yield _chosen("several_blocks", x, tokens)
    yield _chosen("int32_tokens_repeated", x, tokens[:, [0, 0, 1, 0]].int())
    yield _chosen("more_columns_than_upstreams_block", x[:2], ints(rng, 2, 1100, low=0, high=2100))
    masked = x.clone()
    masked[:, ::2] = -INF
    yield _chosen("minus_inf_logits", masked, torch.tensor([[0, 1], [2, 3], [1, 1]]))
    bare = torch.full((2, 50), -INF)
    bare[1, 7] = 3.0
    yield _chosen("no_finite_logit_gives_nan", bare, torch.tensor([[0, 7], [0, 7]]))
    odd = floats(rng, 2, 50)
    odd[0, 3], odd[1, 3] = INF, float("nan")
    yield _chosen("inf_and_nan_logits_give_nan", odd, torch.tensor([[3, 4], [3, 4]]))
    yield _chosen("large_logits_do_not_overflow", floats(rng, 2, 60, scale=1e4), torch.tensor([[0, 1], [2, 59]]))
    home = poison(3, 90, dtype=torch.float32)
    home[:, 5:65] = x[:, :60]
    yield _chosen("rows_apart", home[:, 5:65], tokens % 60)
    yield _chosen("bf16", floats(rng, 2, 70, dtype=torch.bfloat16), torch.tensor([[0, 69], [5, 5]]))
    for i in range(N_RANDOM):
        yield chosen_sample(rng, f"random{i}")


def _state(lists: Sequence[Sequence[int]], width: int) -> Any:
    # Behind a list stands what an earlier request left there.
    table = (torch.arange(len(lists) * width) % 29).view(len(lists), width).int()
    for row, items in zip(table, lists, strict=True):
        row[: len(items)] = torch.tensor(items, dtype=torch.int32)
    count = torch.tensor([len(items) for items in lists], dtype=torch.int32)
    return SimpleNamespace(num_token_ids=SimpleNamespace(gpu=count), token_ids=SimpleNamespace(gpu=table))


def _topk(
    name: str,
    logits: torch.Tensor,
    k: int,
    sampled: torch.Tensor,
    *,
    lists: Sequence[Sequence[int]] | None = None,
    idx: torch.Tensor | None = None,
    width: int = 128,
    cu: list[int] | None = None,
    most: int | None = None,
    logits_mode: bool = False,
) -> Case:
    kwargs: dict[str, Any] = {"logits_mode": True} if logits_mode else {}
    if lists is not None:
        kwargs |= {
            "logprob_token_ids_state": _state(lists, width),
            "expanded_idx_mapping": idx,
            "max_per_req_token_ids": max(map(len, lists)) if most is None else most,
        }
    return Case(name, fresh(logits, k, sampled, cu, **kwargs), tolerance={} if logits_mode else {"ret[1]": CLOSE})


def topk_sample(rng: random.Random, name: str = "drawn") -> Case:
    n, vocab, states = rng.randrange(1, 5), rng.choice([30, 300]), rng.randrange(1, 4)
    sampled = ints(rng, n, low=0, high=vocab, dtype=torch.int64)
    idx = ints(rng, n, low=0, high=states, dtype=rng.choice([torch.int32, torch.int64]))
    lists = [rng.sample(range(vocab), rng.choice([0, 1, rng.randrange(1, 20)])) for _ in range(states)]
    custom = any(lists) and rng.random() < 0.6
    k, mode = rng.choice([0, 1, 5]), LOGITS_MODE and rng.random() < 0.3
    return _topk(name, floats(rng, n, vocab), k, sampled, lists=lists if custom else None, idx=idx, logits_mode=mode)


def topk_cases(rng: random.Random) -> Iterator[Case]:
    x = floats(rng, 4, 300)
    sampled = torch.tensor([3, 299, 0, 3])
    yield _topk("sampled_only", x, 0, sampled)
    yield _topk("top_five", x, 5, sampled, cu=[0, 2, 3, 4])
    yield _topk("whole_vocabulary", x, 300, sampled)
    yield _topk("int32_sampled_tokens", x, 3, sampled.int())
    ties = x.clone()
    ties[:, 100:104] = ties[:, [3]]
    yield _topk("rank_counts_equals", ties, 0, sampled)
    best = x.clone()
    best[0, 3] = 99.0
    yield _topk("rank_of_the_best_is_one", best, 0, sampled)
    bare = torch.full((2, 300), -INF)
    bare[1, :10] = 1.0
    yield _topk("rank_of_minus_inf_counts_upstreams_lanes", bare, 0, torch.tensor([0, 200]))
    yield _topk("rank_over_several_blocks", floats(rng, 2, 17000), 2, torch.tensor([16999, 5]))
    lists: list[list[int]] = [[7, 8, 9], [], [5]]
    idx = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    yield _topk("lists_in_place_of_the_best", x, 2, sampled, lists=lists, idx=idx)
    yield _topk("lists_without_any_best", x, 0, sampled, lists=lists, idx=idx.long())
    yield _topk("lists_shorter_than_the_best", x, 10, sampled, lists=lists, idx=idx)
    yield _topk("more_best_than_a_list_can_hold", x, 10, sampled, lists=lists, idx=idx, width=4)
    yield _topk("nobody_in_the_batch_has_a_list", x, 2, sampled, lists=[[1], [], []], idx=torch.tensor([1, 2, 1, 1]))
    yield _topk("int32_sampled_tokens_and_lists", x, 2, sampled.int(), lists=lists, idx=idx)
    yield _topk("full_list", x, 1, sampled, lists=[list(range(100, 228)), [], [0]], idx=idx)
    yield _topk("float16", x.half(), 5, sampled, lists=lists, idx=idx)
    if LOGITS_MODE:
        yield _topk("logits_sampled_only", x, 0, sampled, logits_mode=True)
        yield _topk("logits_top_five", x, 5, sampled.int(), cu=[0, 2, 3, 4], logits_mode=True)
        yield _topk("logits_of_lists", x, 2, sampled, lists=lists, idx=idx, logits_mode=True)
        yield _topk("logits_float16", x.half(), 2, sampled, logits_mode=True)
        yield _topk("logits_minus_inf", bare, 3, torch.tensor([0, 200]), logits_mode=True)
    for i in range(N_RANDOM):
        yield topk_sample(rng, f"random{i}")


SITES = (
    Site(
        (20,),
        lambda: original(MODULE, "compute_token_logprobs"),
        "sample_logprob:compute_token_logprobs",
        chosen_cases,
        chosen_sample,
    ),
    Site(
        (21, 22),
        lambda: original(MODULE, TOPK),
        f"sample_logprob:{TOPK}",
        topk_cases,
        topk_sample,
    ),
)
