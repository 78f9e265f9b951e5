# SPDX-License-Identifier: Apache-2.0
"""Site 26: the token after each scheduled one. Bit by bit, but for what upstream leaves uninitialised."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, Case, Site, State, cumulative, fresh, original, poison

MODULE = "vllm.v1.worker.gpu.sample.prompt_logprob"


def _case(
    name: str,
    lens: Sequence[int],
    computed: Sequence[int],
    idx: Sequence[int],
    *,
    num_tokens: int | None = None,
    pad_to: int | None = None,
    model_len: int = 20,
    dtype: torch.dtype = torch.int32,
    apart: bool = False,
) -> Case:
    """`computed` of every state, `lens` scheduled tokens of each row of the batch."""
    table = poison(len(computed), model_len)
    if apart:
        table = poison(len(computed), model_len + 6)[:, 3 : 3 + model_len]
    qsl = cumulative(lens, pad_to)
    n = sum(lens) if num_tokens is None else num_tokens
    counts = torch.tensor(computed, dtype=torch.int32)
    # Nobody writes these; and the token after a full row is another row's, or nobody's.
    free = torch.zeros(n, dtype=torch.bool)
    free[sum(lens) :] = True
    for start, length, state in zip(qsl.tolist(), lens, idx, strict=False):
        for j in range(length):
            free[start + j] = computed[state] + 1 + j >= model_len

    def ignore(_: State) -> dict[str, torch.Tensor]:
        return {"ret": free}

    return Case(name, fresh(n, qsl, torch.tensor(idx, dtype=dtype), counts, table), ignore=ignore)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    states = rng.randrange(1, 5)
    idx = rng.sample(range(states), rng.randrange(1, states + 1))
    lens = [rng.choice([0, 1, 1, 5]) for _ in idx]
    computed = [rng.randrange(0, 16) for _ in range(states)]
    total = sum(lens)
    return _case(
        name,
        lens,
        computed,
        idx,
        num_tokens=total + rng.choice([0, 0, 3]),
        pad_to=len(lens) + 1 + rng.randrange(3),
        dtype=rng.choice([torch.int32, torch.int64]),
        apart=rng.random() < 0.3,
    )


def cases(rng: random.Random) -> Iterator[Case]:
    yield _case("whole_prompts", [4, 7], [0, 0, 0], [2, 0])
    yield _case("chunks_and_decodes_permuted", [3, 1, 5], [0, 4, 9, 2], [3, 1, 2], dtype=torch.int64)
    yield _case("B6_padded_query_start_loc", [3, 2], [0, 4], [1, 0], pad_to=7)
    yield _case("rows_of_no_tokens", [0, 3, 0, 2, 0], [1, 2, 3, 4, 5], [4, 3, 2, 1, 0])
    yield _case("tokens_behind_the_last_request", [2, 3], [1, 0], [0, 1], num_tokens=9)
    yield _case("a_row_that_fills_max_model_len", [5, 6], [15, 14], [0, 1])
    yield _case("B9_table_rows_apart", [3, 3], [0, 7], [1, 0], apart=True)
    yield _case("more_than_one_block_of_1024", [1500, 1030], [3, 0], [1, 0], model_len=1600)
    yield _case("one_token", [1], [0], [0])
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (26,),
        lambda: original(MODULE, "get_prompt_logprobs_token_ids"),
        "sample_prompt_logprob:get_prompt_logprobs_token_ids",
        cases,
        sample,
    ),
)
