# SPDX-License-Identifier: Apache-2.0
"""Sites 24 and 25: penalties and their statistics. Compared bit by bit.

On a GPU upstream's compiler approximates `1 / penalty` and fuses `logits - penalty * count` into one rounding
(rounding.py); the interpreter does neither.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, Case, Site, floats, fresh, ints, original, poison
from rounding import penalised

MODULE = "vllm.v1.worker.gpu.sample.penalties"


def _local(lens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([j for n in lens for j in range(n)], dtype=torch.int32)


def _penalties(
    name: str,
    rng: random.Random,
    logits: torch.Tensor,
    requests: Sequence[int],
    lens: Sequence[int],
    penalties: Sequence[tuple[float, float, float]],
    *,
    tokens: Sequence[int] | None = None,
    dtype: torch.dtype = torch.int32,
    apart: bool = False,
) -> Case:
    """`lens` rows of each of `requests`; (repetition, frequency, presence) of each state."""
    states, vocab = len(penalties), logits.shape[1]
    idx = torch.tensor([r for r, n in zip(requests, lens, strict=True) for _ in range(n)], dtype=dtype)
    drafted = ints(rng, len(idx), low=0, high=vocab) if tokens is None else torch.tensor(tokens, dtype=torch.int32)
    counts = ints(rng, states, vocab, low=-3, high=3).clamp_(min=0)
    bits = ints(rng, states, -(-vocab // 32), low=-(2**31), high=2**31)
    if apart:
        home, homes = poison(states, vocab + 9), poison(states, bits.shape[1] + 3)
        home[:, 4 : 4 + vocab], homes[:, 1 : 1 + bits.shape[1]] = counts, bits
        counts, bits = home[:, 4 : 4 + vocab], homes[:, 1 : 1 + bits.shape[1]]
    by_kind = (torch.tensor(column) for column in zip(*penalties, strict=True))
    make = fresh(logits, idx, drafted, _local(lens), *by_kind, bits, counts)
    return Case(name, make, rounding={"arg0": penalised})


def penalties_sample(rng: random.Random, name: str = "drawn") -> Case:
    states = rng.randrange(1, 5)
    requests = rng.sample(range(states), rng.randrange(1, states + 1))
    lens = [rng.choice([1, 1, 2, 4]) for _ in requests]
    vocab = rng.choice([3, 33, 64, 1500])
    penalties = [
        (rng.choice([1.0, rng.uniform(0.3, 2.0)]), rng.choice([0.0, rng.uniform(-2, 2)]), rng.choice([0.0, -1.5, 0.4]))
        for _ in range(states)
    ]
    logits = floats(rng, sum(lens), vocab)
    dtype = rng.choice([torch.int32, torch.int64])
    # Few different tokens, so that drafts repeat.
    tokens = [rng.randrange(min(vocab, 6)) for _ in range(sum(lens))]
    return _penalties(
        name, rng, logits, requests, lens, penalties, tokens=tokens, dtype=dtype, apart=rng.random() < 0.3
    )


def penalties_cases(rng: random.Random) -> Iterator[Case]:
    off, some = (1.0, 0.0, 0.0), (1.3, 0.7, -0.4)
    x = floats(rng, 6, 100)
    x[0, :4] = torch.tensor([0.0, -0.0, float("-inf"), float("inf")])
    for name, kind in {
        "repetition": (1.7, 0.0, 0.0),
        "frequency": (1.0, 0.3, 0.0),
        "presence": (1.0, 0.0, -2.0),
    }.items():
        yield _penalties(f"{name}_alone", rng, x[:3].clone(), [1, 0, 2], [1, 1, 1], [kind] * 3)
    yield _penalties("rows_without_penalty_untouched", rng, x[:3].clone(), [1, 0, 2], [1, 1, 1], [off, some, off])
    yield _penalties(
        "T_drafts_before_a_row_count", rng, x.clone(), [1, 0], [4, 2], [some, some], tokens=[9, 5, 5, 6, 7, 5]
    )
    same = [5] * 6
    yield _penalties("T_same_token_drafted_twice", rng, x.clone(), [1, 0], [3, 3], [some, (1.0, 0.9, 0.0)], tokens=same)
    yield _penalties(
        "T_last_drafts_of_one_request_are_not_the_next_ones", rng, x.clone(), [2, 0, 1], [3, 2, 1], [some] * 3
    )
    off_vocab = [5, -1, 100, 2**31 - 1, -(2**31), 99]
    yield _penalties("drafted_tokens_outside_the_vocabulary", rng, x.clone(), [0], [6], [some], tokens=off_vocab)
    yield _penalties(
        "int64_mapping_state_rows_apart", rng, x.clone(), [3, 1], [2, 4], [some] * 4, dtype=torch.int64, apart=True
    )
    yield _penalties("vocabulary_of_whole_words", rng, x[:2, :96].clone(), [0, 1], [1, 1], [some] * 2)
    wide = floats(rng, 3, 8230)
    yield _penalties(
        "more_than_one_block_of_8192", rng, wide, [1, 0], [1, 2], [some, (0.8, 0.0, 1.0)], tokens=[8229, 3, 8191]
    )
    home = poison(3, 130, dtype=torch.float32)
    home[:, 20:120] = x[:3]
    yield _penalties("logits_rows_apart", rng, home[:, 20:120], [1, 0, 2], [1, 1, 1], [some, off, some])
    half = x.half()
    yield _penalties("float16", rng, half, [1, 0], [4, 2], [some, (0.8, 0.0, 1.0)], tokens=[9, 5, 5, 6, 7, 5])
    for i in range(N_RANDOM):
        yield penalties_sample(rng, f"random{i}")


def _bincount(
    name: str,
    rng: random.Random,
    requests: Sequence[int],
    lens: Sequence[tuple[int, int]],
    *,
    vocab: int = 70,
    model_len: int = 40,
    dtype: torch.dtype = torch.int32,
    tokens: torch.Tensor | None = None,
    apart: bool = False,
    max_prefill: int | None = None,
) -> Case:
    """(prompt_len, prefill_len) of every state; requests are the new ones."""
    states, words = len(lens), -(-vocab // 32)
    table = ints(rng, states, model_len, low=0, high=vocab) if tokens is None else tokens
    mask, counts = poison(states, words), poison(states, vocab)
    if apart:
        mask, counts = poison(states, words + 4)[:, 2 : 2 + words], poison(states, vocab + 4)[:, 1 : 1 + vocab]
    prompt, prefill = (torch.tensor(column, dtype=torch.int32) for column in zip(*lens, strict=True))
    most = max((lens[r][1] for r in requests), default=0) if max_prefill is None else max_prefill
    idx = torch.tensor(requests, dtype=dtype)
    return Case(name, fresh(idx, table, prompt, prefill, mask, counts, most))


def bincount_sample(rng: random.Random, name: str = "drawn") -> Case:
    states = rng.randrange(1, 5)
    lens = []
    for _ in range(states):
        prompt = rng.randrange(0, 41)
        lens.append((prompt, rng.randrange(prompt, 41)))
    requests = rng.sample(range(states), rng.randrange(1, states + 1))
    dtype = rng.choice([torch.int32, torch.int64])
    return _bincount(name, rng, requests, lens, vocab=rng.choice([5, 32, 70]), dtype=dtype, apart=rng.random() < 0.3)


def bincount_cases(rng: random.Random) -> Iterator[Case]:
    lens = [(10, 10), (3, 20), (0, 7), (40, 40), (5, 6)]
    yield _bincount("other_rows_untouched", rng, [3, 0, 1], lens)
    yield _bincount("prompt_only_and_output_only", rng, [0, 2], lens, dtype=torch.int64)
    same = torch.full((5, 40), 31, dtype=torch.int32)
    yield _bincount("B8_repeated_tokens_accumulate_and_the_sign_bit", rng, [1, 2], lens, tokens=same)
    yield _bincount("a_row_at_max_model_len", rng, [3], lens)
    yield _bincount("state_rows_apart", rng, [4, 1], lens, apart=True)
    yield _bincount("nothing_computed_yet_only_clears", rng, [0, 1], [(0, 0), (0, 0), (4, 4)])
    long = [(1500, 2100), (1024, 1025), (10, 2048), (1023, 1024)]
    yield _bincount("several_blocks_of_1024", rng, [2, 0, 1, 3], long, model_len=2200)
    slow = (torch.arange(2200, dtype=torch.int32) // 30).repeat(2, 1)
    short = [(1300, 20), (2000, 1030)]
    yield _bincount("prompt_beyond_the_prefill_by_blocks", rng, [0, 1], short, vocab=80, model_len=2200, tokens=slow)
    yield _bincount("listed_twice_counts_twice", rng, [1, 1], lens)
    yield _bincount(
        "every_bit_of_every_word", rng, [0], [(64, 64)], vocab=64, model_len=64, tokens=torch.arange(64).int()[None]
    )
    for i in range(N_RANDOM):
        yield bincount_sample(rng, f"random{i}")


SITES = (
    Site(
        (24,),
        lambda: original(MODULE, "apply_penalties"),
        "sample_penalties:apply_penalties",
        penalties_cases,
        penalties_sample,
    ),
    Site((25,), lambda: original(MODULE, "bincount"), "sample_penalties:bincount", bincount_cases, bincount_sample),
)
