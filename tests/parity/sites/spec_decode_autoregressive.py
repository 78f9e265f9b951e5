# SPDX-License-Identifier: Apache-2.0
"""Sites 27-29: draft inputs of eagle and mtp."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import torch
from harness import N_RANDOM, PIN, Case, Site, cumulative, floats, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator"
STATES = 13


def buffers(max_num_reqs: int, max_num_tokens: int) -> SimpleNamespace:
    """The fields of upstream's InputBuffers that the draft inputs use, poisoned."""
    return SimpleNamespace(
        input_ids=poison(max_num_tokens),
        positions=poison(max_num_tokens, dtype=torch.int64),
        query_start_loc=poison(max_num_reqs + 1),
        seq_lens=poison(max_num_reqs),
    )


def permutation(rng: random.Random, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Distinct state rows of n requests, out of order."""
    return torch.tensor(rng.sample(range(STATES), n), dtype=dtype)


def batch(
    rng: random.Random,
    lens: Sequence[int],
    pad_reqs: int,
    pad_tokens: int,
    idx_dtype: torch.dtype,
    high: int,
    starts: Sequence[int] | None = None,
) -> SimpleNamespace:
    """The fields of upstream's InputBatch that the draft inputs use.

    Positions ascend within a request from `starts`, or from a random number below `high`.
    """
    n, tokens = len(lens), sum(lens)
    positions = poison(tokens + pad_tokens, dtype=torch.int64)
    seq_lens = poison(n + pad_reqs)
    at = 0
    for row, length in enumerate(lens):
        start = rng.randrange(high) if starts is None else starts[row]
        positions[at : at + length] = torch.arange(start, start + length)
        seq_lens[row] = start + length
        at += length
    input_ids = poison(tokens + pad_tokens)
    input_ids[:tokens] = ints(rng, tokens, low=0, high=99999)
    return SimpleNamespace(
        num_reqs=n,
        num_tokens=tokens,
        num_tokens_after_padding=tokens + pad_tokens,
        num_scheduled_tokens=torch.tensor(lens, dtype=torch.int32).numpy(),
        idx_mapping=permutation(rng, n, idx_dtype),
        query_start_loc=cumulative(lens, pad_to=n + 1 + pad_reqs),
        input_ids=input_ids,
        positions=positions,
        seq_lens=seq_lens,
    )


def states(rng: random.Random, flat: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """last_sampled int64, [n, 1] as RequestState has it or [n], and next_prefill_tokens [n]; since 0.27.1 [2, n]."""
    last = ints(rng, STATES, low=0, high=99999, dtype=torch.int64)
    shape = (STATES,) if PIN < (0, 27) else (2, STATES)
    return last if flat else last.unsqueeze(1), ints(rng, *shape, low=0, high=99999)


def _prefill(
    rng: random.Random,
    name: str,
    lens: Sequence[int],
    rejected: Sequence[int],
    sampled: Sequence[int],
    pad: int = 2,
    pad_tokens: int = 3,
    idx_dtype: torch.dtype = torch.int32,
    flat: bool = False,
    high: int = 5000,
) -> Case:
    n = len(lens)
    max_num_reqs = n + pad
    last, following = states(rng, flat)
    return Case(
        name,
        fresh(
            poison(max_num_reqs, dtype=torch.int64),
            torch.tensor(7),
            buffers(max_num_reqs, sum(lens) + pad_tokens + 5),
            batch(rng, lens, min(pad, 1), pad_tokens, idx_dtype, high),
            torch.tensor(sampled, dtype=torch.int32),
            torch.tensor(rejected, dtype=torch.int32),
            last,
            following,
            max_num_reqs,
        ),
    )


def prefill_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(1, 7)
    lens = [rng.choice([1, 2, 5, 6, 40]) for _ in range(n)]
    rejected = [rng.randrange(0, length) for length in lens]
    sampled = [rng.randrange(0, 3) for _ in lens]
    return _prefill(
        rng,
        name,
        lens,
        rejected,
        sampled,
        rng.randrange(0, 4),
        rng.randrange(0, 4),
        rng.choice([torch.int32, torch.int64]),
        rng.random() < 0.5,
    )


def prefill_cases(rng: random.Random) -> Iterator[Case]:
    yield _prefill(rng, "B2_two_dimensional_last_sampled", [4, 3, 5], [0, 2, 1], [4, 1, 4])
    yield _prefill(rng, "rejected_tail_is_left_alone", [5, 5, 5], [4, 0, 2], [1, 5, 3])
    yield _prefill(rng, "chunked_prefill_takes_the_next_prompt_token", [1, 7, 1], [0, 0, 0], [0, 0, 1])
    yield _prefill(rng, "over_a_block_of_1024", [1030, 2, 1025], [5, 0, 1], [0, 2, 3])
    yield _prefill(rng, "no_padding", [3, 1], [1, 0], [1, 1], pad=0, pad_tokens=0)
    yield _prefill(rng, "int64_idx_mapping", [2, 6, 3], [1, 5, 0], [1, 1, 3], idx_dtype=torch.int64)
    yield _prefill(rng, "padding_beyond_1024_rows", [2, 2], [0, 1], [2, 1], pad=1200)
    yield _prefill(rng, "positions_over_2_to_32", [3, 4], [1, 0], [2, 4], high=2**31 - 10)
    yield _prefill(rng, "empty_batch", [], [], [], pad=3)
    for i in range(N_RANDOM):
        yield prefill_sample(rng, f"random{i}")


def _decode(
    rng: random.Random, name: str, n: int, pad: int, max_model_len: int, advance: bool, column: int = 3
) -> Case:
    max_num_reqs = n + pad
    draft = poison(max_num_reqs, column, dtype=torch.int64)
    draft[:n, 0] = ints(rng, n, low=0, high=99999, dtype=torch.int64)
    into = buffers(max_num_reqs, max_num_reqs + 4)
    into.positions[:n] = ints(rng, n, low=0, high=max_model_len, dtype=torch.int64)
    target = poison(n + 1)
    target[:n] = ints(rng, n, low=4, high=max_model_len + 3)
    rejected = ints(rng, n, low=0, high=4)
    if n:
        # The last position there is.
        into.positions[0], target[0], rejected[0] = max_model_len - 1, max_model_len, 0
    if advance and rng.random() < 0.5:
        return Case(name, fresh(draft[:n, 0], target, rejected, into, max_model_len, max_num_reqs))
    return Case(
        name,
        fresh(draft[:n, 0], target, rejected, into, max_model_len, max_num_reqs, advance_draft_positions=advance),
    )


def decode_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(0, 9)
    return _decode(rng, name, n, rng.randrange(0, 5), rng.choice([8, 100]), rng.random() < 0.7)


def decode_cases(rng: random.Random) -> Iterator[Case]:
    yield _decode(rng, "clamped_at_max_model_len", 5, 3, 8, True)
    yield _decode(rng, "constant_positions_still_pad_seq_lens", 4, 2, 50, False)
    yield _decode(rng, "strided_draft_tokens", 3, 0, 64, True, column=7)
    yield _decode(rng, "padding_beyond_1024_rows", 2, 1100, 64, True)
    yield _decode(rng, "empty_batch", 0, 3, 64, True)
    for i in range(N_RANDOM):
        yield decode_sample(rng, f"random{i}")


def _update(
    rng: random.Random,
    name: str,
    n: int,
    step: int,
    steps: int,
    hidden: int = 24,
    advance: bool = True,
    dtype: torch.dtype = torch.float32,
    max_model_len: int = 40,
) -> Case:
    into = buffers(n + 2, n + 6)
    into.positions[:n] = ints(rng, n, low=0, high=max_model_len, dtype=torch.int64)
    into.seq_lens[:n] = ints(rng, n, low=1, high=max_model_len + 1)
    if n:
        into.positions[n - 1], into.seq_lens[n - 1] = max_model_len - 1, max_model_len
    return Case(
        name,
        fresh(
            ints(rng, n, low=0, high=99999, dtype=torch.int64),
            torch.tensor(step),
            floats(rng, n + 3, hidden, dtype=dtype),
            poison(n + 2, steps, dtype=torch.int64),
            poison(n + 5, hidden + 8, dtype=dtype),
            into,
            n,
            max_model_len,
            steps,
            advance_draft_positions=advance,
        ),
    )


def update_sample(rng: random.Random, name: str = "drawn") -> Case:
    steps = rng.randrange(2, 6)
    return _update(
        rng,
        name,
        rng.randrange(0, 6),
        rng.randrange(0, steps),
        steps,
        rng.choice([1, 16, 65]),
        rng.random() < 0.7,
        rng.choice([torch.float32, torch.bfloat16]),
    )


def update_cases(rng: random.Random) -> Iterator[Case]:
    yield _update(rng, "first_step", 4, 1, 4)
    yield _update(rng, "last_step_updates_no_inputs", 4, 3, 4)
    yield _update(rng, "constant_positions", 3, 1, 5, advance=False)
    yield _update(rng, "hidden_over_a_block_of_1024", 2, 1, 3, hidden=1500)
    yield _update(rng, "bfloat16_hidden", 3, 2, 4, dtype=torch.bfloat16)
    yield _update(rng, "empty_batch", 0, 1, 3)
    for i in range(N_RANDOM):
        yield update_sample(rng, f"random{i}")


def _site(
    ident: int,
    function: str,
    cases: Callable[[random.Random], Iterator[Case]],
    sample: Callable[[random.Random], Case],
) -> Site:
    return Site(
        (ident,),
        lambda: original(MODULE, function),
        f"spec_decode_autoregressive:{function}",
        cases,
        sample,
    )


SITES = (
    _site(27, "prepare_prefill_inputs", prefill_cases, prefill_sample),
    _site(28, "prepare_decode_inputs", decode_cases, decode_sample),
    _site(29, "update_draft_inputs", update_cases, update_sample),
)
