# SPDX-License-Identifier: Apache-2.0
"""Sites 53 and 54 (since 0.28.0): thinking budgets. Bit by bit, what is remembered of the committed tokens included."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, original, poison

MODULE = "vllm.v1.worker.gpu.sample.thinking_budget"
START, END, FORCED = (7, 8), (9,), (3, 9)


def _case(
    rng: random.Random,
    name: str,
    committed: Sequence[Sequence[int]],
    budgets: Sequence[int],
    drafts: Sequence[Sequence[int]],
    *,
    markers: tuple[Sequence[int], Sequence[int], Sequence[int]] = (START, END, FORCED),
    cached: Sequence[tuple[int, int, int]] | None = None,
    model_len: int = 40,
    vocab: int = 20,
    dtype: torch.dtype = torch.int32,
    requests: Sequence[int] | None = None,
    logits_dtype: torch.dtype = torch.float32,
) -> Case:
    """Committed tokens and budget of every state, drafts of every request. cached: last start, last end, scan position.

    requests: their states, by default all in order.
    """
    n = len(committed)
    states = list(range(n)) if requests is None else list(requests)
    table = poison(n, model_len)
    for state, tokens in enumerate(committed):
        table[state, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    inputs, local, expanded = [], [], []
    for state, mine in zip(states, drafts, strict=True):
        # The newest committed token, then the drafts.
        inputs += [committed[state][-1] if committed[state] else 0, *mine]
        local += range(len(mine) + 1)
        expanded += [state] * (len(mine) + 1)
    remembered = torch.tensor(cached or [(-1, -1, 0)] * n, dtype=torch.int32)
    args = (
        floats(rng, len(inputs), vocab, dtype=logits_dtype),
        torch.tensor(states, dtype=dtype),
        torch.tensor(expanded, dtype=dtype),
        torch.tensor(budgets, dtype=torch.int32),
        table,
        torch.tensor([len(tokens) for tokens in committed], dtype=torch.int32),
        torch.tensor(inputs, dtype=torch.int32),
        torch.tensor(local, dtype=torch.int32),
        *(remembered[:, i].clone() for i in range(3)),
        *(torch.tensor(marker, dtype=torch.int32) for marker in markers),
    )
    return Case(name, fresh(*args))


def sample(rng: random.Random, name: str = "drawn") -> Case:
    """A few different tokens, so that markers and their beginnings turn up everywhere."""

    def text(n: int) -> list[int]:
        return [rng.randrange(3) for _ in range(n)]

    n = rng.randrange(1, 5)
    committed = [text(rng.randrange(1, 20)) for _ in range(n)]
    requests = rng.sample(range(n), rng.randrange(1, n + 1))
    drafts = [text(rng.choice([0, 0, 1, 4])) for _ in requests]
    cached = []
    for tokens in committed:
        scanned = rng.randrange(0, len(tokens) + 3)
        cached.append(rng.choice([(-1, -1, 0), (-1, -1, scanned), (scanned // 2, -1, scanned), (0, scanned, scanned)]))
    return _case(
        rng,
        name,
        committed,
        [rng.choice([-1, 0, 1, 2, 3, 30]) for _ in range(n)],
        drafts,
        markers=(text(rng.choice([1, 2])), text(rng.choice([1, 2, 3])), text(rng.choice([1, 2, 4]))),
        cached=cached,
        dtype=rng.choice([torch.int32, torch.int64]),
        requests=requests,
    )


def cases(rng: random.Random) -> Iterator[Case]:
    thinks = [1, 7, 8, 4, 4, 4]
    yield _case(rng, "used_up", [thinks], [3], [[]])
    yield _case(rng, "one_token_left", [thinks], [4], [[]])
    yield _case(rng, "no_budget", [thinks, thinks], [-1, 2], [[], []])
    yield _case(rng, "budget_of_nothing_at_once", [[1, 7, 8]], [0], [[]])
    yield _case(rng, "ended_by_itself", [[7, 8, 4, 4, 9, 4, 4]], [1], [[]])
    yield _case(rng, "begun_again_after_an_end", [[7, 8, 9, 1, 7, 8, 4, 4]], [2], [[]])
    yield _case(rng, "end_marker_is_under_way", [[7, 8, 4, 4, 3]], [2], [[]])
    yield _case(rng, "used_up_in_the_drafts", [thinks], [5], [[4, 4, 4, 4]])
    yield _case(rng, "begins_in_the_drafts", [[1, 2, 4]], [1], [[7, 8, 4, 4]])
    yield _case(rng, "begins_across_the_first_draft", [[1, 2, 7]], [1], [[8, 4, 4]])
    yield _case(rng, "ends_in_the_drafts", [thinks], [2], [[4, 9, 4, 4]])
    yield _case(rng, "end_marker_under_way_across_the_drafts", [[7, 8, 4, 3, 3]], [2], [[3, 5, 3]])
    yield _case(rng, "drafts_of_neighbours_are_others", [thinks, [1, 2], [7, 8, 1]], [3, 0, 1], [[9, 7], [8, 4], [4]])
    yield _case(
        rng,
        "longer_markers",
        [[5, 6, 7, 8, 4, 1, 2, 3]],
        [1],
        [[1, 2, 4]],
        markers=((5, 6, 7), (1, 2, 9, 4), (1, 2, 3, 1, 2, 4)),
    )
    yield _case(rng, "text_shorter_than_the_markers", [[7], [3]], [0, 0], [[], []], markers=((7, 8, 7), (9, 9), (3, 9)))
    yield _case(rng, "goes_on_where_it_looked_before", [[7, 8, 1, 1, 7, 8, 4]], [1], [[]], cached=[(4, -1, 6)])
    yield _case(rng, "what_was_looked_at_is_not_looked_at_again", [[7, 8, 4, 4]], [1], [[]], cached=[(-1, -1, 3)])
    yield _case(rng, "a_shorter_text_is_a_new_one", [[7, 8, 4, 4]], [1], [[]], cached=[(9, 2, 11)])
    long = [4] * 3000
    early, late = list(long), list(long)
    early[:2] = START
    late[100:102], late[1500], late[2900:2902] = START, END[0], START
    yield _case(rng, "markers_far_back", [early, late], [2000, 90], [[4], []], model_len=3100)
    end_last = list(late)
    end_last[2950] = END[0]
    yield _case(rng, "several_blocks_back", [end_last, long, late[:2000]], [1, 1, 1], [[], [], []], model_len=3000)
    between = list(long)
    between[3000 - 1025 : 3000 - 1023] = START
    yield _case(rng, "marker_across_two_blocks", [between], [1], [[]], model_len=3000)
    yield _case(
        rng, "out_of_order_int64", [thinks, [1], thinks], [9, 0, 1], [[], [4]], requests=[2, 0], dtype=torch.int64
    )
    yield _case(rng, "bfloat16_logits", [thinks], [3], [[4]], logits_dtype=torch.bfloat16)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    (
        Site(
            (53, 54),
            lambda: original(MODULE, "apply_thinking_budget"),
            "sample_thinking_budget:apply_thinking_budget",
            cases,
            sample,
        ),
    )
    if PIN >= (0, 28)
    else ()
)
