# SPDX-License-Identifier: Apache-2.0
"""Site 19: allowed tokens, logit bias and minimum length. Compared bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from harness import N_RANDOM, Case, Site, floats, fresh, original, poison

MODULE = "vllm.v1.worker.gpu.sample.logit_bias"


def _table(lists: Sequence[Sequence[Any]], width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(how long each list is, the lists with what an earlier request left behind them)."""
    table = (torch.arange(len(lists) * width) % 20).view(len(lists), width).to(dtype)
    for row, items in zip(table, lists, strict=True):
        row[: len(items)] = torch.tensor(items, dtype=dtype)
    return torch.tensor([len(items) for items in lists], dtype=torch.int32), table


def _case(
    name: str,
    logits: torch.Tensor,
    idx: Sequence[int],
    pos: Sequence[int],
    *,
    allowed: Sequence[Sequence[int]] | None = None,
    bias: Sequence[Mapping[int, float]] | None = None,
    stop: Sequence[Sequence[int]] | None = None,
    min_lens: Sequence[int] | None = None,
    dtype: torch.dtype = torch.int32,
    widths: tuple[int, int, int] = (16, 16, 8),
) -> Case:
    states = max(idx) + 1
    allowed, bias, stop = (x or [()] * states for x in (allowed, bias, stop))  # type: ignore[assignment]
    num_bias, bias_ids = _table([list(b) for b in bias], widths[1], torch.int32)
    _, biases = _table([list(dict(b).values()) for b in bias], widths[1], torch.float32)
    lens = torch.tensor(min_lens or [0] * states, dtype=torch.int32)
    args = (
        logits,
        torch.tensor(idx, dtype=dtype),
        torch.tensor(pos),
        *_table(allowed, widths[0], torch.int32),
        num_bias,
        bias_ids,
        biases,
        lens,
        *_table(stop, widths[2], torch.int32),
    )
    return Case(name, fresh(*args))


def sample(rng: random.Random, name: str = "drawn") -> Case:
    n, states, vocab = rng.randrange(1, 5), rng.randrange(1, 4), rng.choice([20, 70, 1100])

    def some(most: int) -> list[list[int]]:
        return [rng.sample(range(vocab), rng.choice([0, 0, 1, rng.randrange(most + 1)])) for _ in range(states)]

    idx = [rng.randrange(states) for _ in range(n)]
    idx[0] = states - 1
    return _case(
        name,
        floats(rng, n, vocab),
        idx,
        [rng.randrange(12) for _ in range(n)],
        allowed=some(16),
        bias=[{t: rng.uniform(-100, 100) for t in tokens} for tokens in some(16)],
        stop=some(8),
        min_lens=[rng.randrange(12) for _ in range(states)],
        dtype=rng.choice([torch.int32, torch.int64]),
    )


def cases(rng: random.Random) -> Iterator[Case]:
    x = floats(rng, 4, 90)
    x[0, 3] = -0.0
    x[:, 40] = float("-inf")
    rows, pos = [1, 0, 2, 1], [5, 6, 7, 8]
    yield _case("nothing_asked_for_touches_nothing", x.clone(), rows, pos)
    yield _case("allowed_keep_their_logits", x.clone(), rows, pos, allowed=[[], [3, 40, 89, 0], [7]])
    both = [{}, {3: 1.5, 40: 2.0, 0: -7.25}, {89: 100.0}]
    yield _case("bias_added_once", x.clone(), rows, pos, bias=both)
    yield _case("bias_on_what_allowed_removed", x.clone(), rows, pos, allowed=[[], [3, 5], [7]], bias=both)
    stops = [[1], [2, 3, 89], [4]]
    edge = [7, 7, 7]
    yield _case("min_tokens_strictly_before", x.clone(), rows, pos, stop=stops, min_lens=edge)
    yield _case("min_tokens_after_bias", x.clone(), rows, pos, bias=both, stop=stops, min_lens=[99] * 3)
    yield _case("min_len_without_stop_tokens", x.clone(), rows, pos, min_lens=[99] * 3)
    yield _case("stop_tokens_without_min_len", x.clone(), rows, pos, stop=stops)
    every = {
        "allowed": [[0, 1, 2, 3], [3], []],
        "bias": [{3: 2.0, 2: -1.0}, {3: -4.0}, {0: 9.0}],
        "stop": [[3], [3], [0, 1]],
    }
    yield _case("allowed_then_bias_then_stop", x.clone(), rows, pos, min_lens=[7, 7, 99], **every)  # type: ignore[arg-type]
    full = [list(range(16)), [], list(range(60, 76))]
    lists = {"allowed": full, "bias": [dict.fromkeys(t, 1.25) for t in full], "stop": [t[:8] for t in full]}
    yield _case("full_lists", x.clone(), rows, pos, min_lens=edge, **lists)  # type: ignore[arg-type]
    yield _case("repeated_tokens_in_a_list", x.clone(), rows, pos, allowed=[[5, 5], [6, 6, 6], [0]], stop=[[2, 2]] * 3)
    home = poison(3, 130, dtype=torch.float32)
    home[:, 20:110] = x[:3]
    yield _case("rows_apart", home[:, 20:110], [2, 0, 0], [1, 2, 3], min_lens=[7, 7, 99], **every)  # type: ignore[arg-type]
    yield _case("first_token_of_the_vocabulary", x.clone(), rows, pos, allowed=[[0], [0], []], bias=[{0: 1.0}] * 3)
    wide = floats(rng, 2, 9000)
    yield _case("more_than_one_block_of_8192", wide, [0, 1], [1, 1], allowed=[[8999, 0], []], bias=[{8998: 1.0}] * 2)
    real = [x.clone(), rows, pos]
    yield _case("lists_as_long_as_upstream_has_them", *real, widths=(1024, 1024, 128), min_lens=edge, **every)  # type: ignore[arg-type]
    yield _case("float16", x.half(), rows, pos, min_lens=[7, 7, 99], **every)  # type: ignore[arg-type]
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site((19,), lambda: original(MODULE, "apply_logit_bias"), "sample_logit_bias:apply_logit_bias", cases, sample),
)
