# SPDX-License-Identifier: Apache-2.0
"""Site 16: bad words, upstream's reading of drafted tokens included (one place off until 0.28.0). Bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, Case, Site, floats, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.sample.bad_words"
Words = Sequence[Sequence[int]]


def _case(
    name: str,
    words: Sequence[Words],
    outputs: Sequence[Sequence[int]],
    requests: Sequence[int],
    drafts: Sequence[Sequence[int]],
    *,
    prompt: int = 3,
    vocab: int = 30,
    width: int = 24,
    most_words: int = 8,
    model_len: int = 20,
    dtype: torch.dtype = torch.int32,
    logits: torch.Tensor | None = None,
) -> Case:
    """Words and output of every state; `drafts` are the input tokens of the rows of each of `requests`."""
    states = len(words)
    # Behind the lists stands what an earlier request left there.
    tokens = (torch.arange(states * width) % 3).view(states, width).int()
    offsets = (torch.arange(states * (most_words + 1)) * 2 % width).view(states, most_words + 1).int()
    table = poison(states, model_len)
    for i, (mine, output) in enumerate(zip(words, outputs, strict=True)):
        flat = [t for word in mine for t in word]
        tokens[i, : len(flat)] = torch.tensor(flat, dtype=torch.int32)
        ends = [sum(len(w) for w in mine[:j]) for j in range(len(mine) + 1)]
        offsets[i, : len(ends)] = torch.tensor(ends, dtype=torch.int32)
        table[i, prompt : prompt + len(output)] = torch.tensor(output, dtype=torch.int32)
    idx = torch.tensor([r for r, d in zip(requests, drafts, strict=True) for _ in d], dtype=dtype)
    local = torch.tensor([j for d in drafts for j in range(len(d))], dtype=torch.int32)
    inputs = torch.tensor([t for d in drafts for t in d], dtype=torch.int32)
    rng = random.Random(name)
    args = (
        floats(rng, len(idx), vocab) if logits is None else logits,
        idx,
        tokens,
        offsets,
        torch.tensor([len(w) for w in words], dtype=torch.int32),
        table,
        torch.full((states,), prompt, dtype=torch.int32),
        torch.tensor([prompt + len(o) for o in outputs], dtype=torch.int32),
        inputs,
        local,
        max(len(words[r]) for r in requests),
    )
    return Case(name, fresh(*args))


def sample(rng: random.Random, name: str = "drawn") -> Case:
    states = rng.randrange(1, 4)
    alphabet = 3  # so that prefixes match

    def text(n: int) -> list[int]:
        return [rng.randrange(alphabet) for _ in range(n)]

    words = [[text(rng.choice([1, 1, 2, 3, 4])) for _ in range(rng.randrange(0, 6))] for _ in range(states)]
    words[0] = words[0] or [[1]]
    outputs = [text(rng.randrange(0, 9)) for _ in range(states)]
    requests = [0, *rng.sample(range(1, states), rng.randrange(0, states))]
    drafts = [text(rng.choice([1, 1, 2, 4])) for _ in requests]
    return _case(name, words, outputs, requests, drafts, dtype=rng.choice([torch.int32, torch.int64]))


def cases(rng: random.Random) -> Iterator[Case]:
    one = [[4]]
    yield _case("single_token_words_always", [[[5], [29], [0]]], [[]], [0], one)
    yield _case("prefix_must_end_the_output", [[[7, 8, 9], [8, 7, 6], [7, 8]]], [[7, 8]], [0], one)
    yield _case("prefix_longer_than_the_output", [[[7, 8, 9], [8, 9], [1, 2, 3, 4, 5]]], [[8]], [0], one)
    yield _case("prefix_as_long_as_the_output", [[[7, 8, 9]]], [[7, 8]], [0], one)
    yield _case("prompt_is_not_output", [[[7, 8, 9]]], [[8]], [0], one, prompt=0)
    many = [[[7, 9]], [], [[1, 2], [3], [2, 1]]]
    yield _case("states_permuted_with_fewer_words", many, [[7], [7], [1]], [2, 0, 1], [[4], [4], [4]])
    yield _case("several_words_forbid_one_token", [[[1, 9], [9], [2, 9]]], [[2]], [0], one)
    yield _case(
        "one_mismatch_in_a_long_prefix", [[[1, 2, 3, 4, 5, 6], [1, 9, 3, 4, 5, 6]]], [[0, 1, 2, 3, 4, 5]], [0], one
    )
    # Upstream takes the input one place before the drafted token: 11 here is the last sampled one.
    drafts = [[11, 12, 13, 14]]
    reads = [[[11, 1], [12, 2], [13, 3], [10, 11, 4], [11, 12, 5], [12, 13, 6], [10, 11, 12, 7]]]
    yield _case("T_drafted_tokens_as_upstream_reads_them", reads, [[10]], [0], drafts)
    yield _case("T_drafts_of_two_requests", [reads[0], reads[0]], [[10], []], [1, 0], [[11, 12], [12, 11, 12]])
    full = [[t, t + 1] for t in range(8)]
    yield _case("full_lists", [full, [[5]]], [[3], []], [0, 1], [[1, 2], [3]], width=16)
    long = [[[1, 2, 3, 4, 5, 6]], [[5], [6], [7], [8]]]
    yield _case("long_word_where_short_ones_were", long, [[1, 2, 3, 4, 5], [1]], [0, 1], [[4], [4]])
    yield _case("empty_word_behind_another", [[[1, 5], [], [6, 7]]], [[6]], [0], one)
    yield _case("int64_mapping_repeated", [[[7, 8]], [[8]]], [[7], [7]], [1, 0, 1], [[3], [3], [3]], dtype=torch.int64)
    edge = list(range(1, 18))
    yield _case("a_row_at_max_model_len", [[[16, 17, 3], [15, 3]]], [edge], [0], one)
    home = poison(2, 60, dtype=torch.float32)
    yield _case("rows_apart", [[[7, 8]], [[8]]], [[7], [7]], [1, 0], [[3], [3]], logits=home[:, 10:40])
    odd = torch.tensor([[float("nan"), float("inf"), float("-inf"), -0.0]])
    yield _case("odd_logits", [[[0], [1], [2]]], [[]], [0], one, vocab=4, logits=odd)
    yield _case(
        "lists_as_long_as_upstream_has_them", many, [[7], [7], [1]], [2, 0], [[4], [4]], width=1024, most_words=128
    )
    yield _case("one_word_fills_the_list", [[[1] * 24]], [[1] * 17], [0], [[1] * 9], width=24)
    yield _case(
        "tokens_of_a_longer_model_row",
        [[[7, 8]]],
        [[*ints(rng, 30, low=0, high=9).tolist(), 7]],
        [0],
        one,
        model_len=64,
    )
    half = floats(rng, 1, 30, dtype=torch.bfloat16)
    yield _case("bfloat16", [[[7, 8, 9], [8, 7, 6], [7, 8]]], [[7, 8]], [0], one, logits=half)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (Site((16,), lambda: original(MODULE, "apply_bad_words"), "sample_bad_words:apply_bad_words", cases, sample),)
