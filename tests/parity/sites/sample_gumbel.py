# SPDX-License-Identifier: Apache-2.0
"""Sites 17 and 18: temperature, and sampling by Gumbel noise. Tokens and stored logits are compared bit by bit.

On a GPU upstream's division is not exact: logits divided by a temperature may be 2 units in the last place away; tokens
may not differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, original, poison
from rounding import quotient

MODULE = "vllm.v1.worker.gpu.sample.gumbel"
INF = float("inf")
# Drafts are remembered from before temperature since 0.28.0: exact, and in a column that is named.
BEFORE_TEMPERATURE = PIN >= (0, 28)
CACHE = "logits_cache" if BEFORE_TEMPERATURE else "output_processed_logits"
STORED = {} if BEFORE_TEMPERATURE else {f"kw.{CACHE}": quotient}
SEEDS = (0, -1, 2**63 - 1, -(2**63), 12345, 2**40 + 7)
POSITIONS = (0, 1, 2**32 - 1, 2**32, 2**40 + 3, 511)


def _wide(x: torch.Tensor, left: int = 3, right: int = 5) -> torch.Tensor:
    """The same values in rows that lie apart, with something poisoned between them."""
    rows, columns = x.shape
    home = poison(rows, left + columns + right, dtype=x.dtype)
    home[:, left : left + columns] = x
    return home[:, left : left + columns]


def _idx(rng: random.Random, states: int, n: int, negative: float = 0.0) -> torch.Tensor:
    rows = [-1 if rng.random() < negative else rng.randrange(states) for _ in range(n)]
    return torch.tensor(rows, dtype=rng.choice([torch.int32, torch.int64]))


# temperature


def _temperature(name: str, logits: torch.Tensor, idx: torch.Tensor, temps: Sequence[float]) -> Case:
    return Case(name, fresh(logits, idx, torch.tensor(temps)), rounding={"arg0": quotient})


def temperature_sample(rng: random.Random, name: str = "drawn") -> Case:
    n, states = rng.randrange(1, 6), rng.randrange(1, 5)
    logits = floats(rng, n, rng.choice([1, 7, 300]))
    temps = [rng.choice([0.0, 1.0, rng.uniform(0.01, 3.0)]) for _ in range(states)]
    return _temperature(name, _wide(logits) if rng.random() < 0.5 else logits, _idx(rng, states, n), temps)


def temperature_cases(rng: random.Random) -> Iterator[Case]:
    odd = torch.tensor([0.0, -0.0, INF, -INF, float("nan"), 1e-45, -3.5, 7.0])
    for temp in (0.0, 1.0):
        rows = torch.tensor([1, 1])
        yield _temperature(f"untouched_at_{temp}", odd.repeat(2, 1), rows, [0.5, temp])
    yield _temperature("plain_division_of_odd_values", odd.repeat(2, 1), torch.tensor([1, 0]), [3.0, 0.7])
    mixed = torch.tensor([3, 0, 2, 3, 1], dtype=torch.int32)
    yield _temperature("rows_apart_permuted_and_repeated", _wide(floats(rng, 5, 33)), mixed, [0.0, 1.0, 0.3, 2.0])
    two = torch.tensor([1, 0])
    yield _temperature("more_than_one_block_of_8192", floats(rng, 2, 8200), two, [0.9, 1.3])
    half = floats(rng, 3, 70, dtype=torch.float16)
    yield _temperature("float16", half, torch.tensor([1, 0, 2]), [0.7, 1.3, 0.0])
    for i in range(N_RANDOM):
        yield temperature_sample(rng, f"random{i}")


# sampling


def _sampling(
    name: str,
    logits: torch.Tensor,
    idx: torch.Tensor,
    temps: Sequence[float],
    *,
    seeds: Sequence[int] = SEEDS,
    pos: Sequence[int] | None = None,
    apply: bool = False,
    out: torch.Tensor | None = None,
    col: torch.Tensor | None = None,
    fp64: bool = False,
) -> Case:
    n = logits.shape[0]
    positions = torch.tensor([POSITIONS[i % len(POSITIONS)] for i in range(n)] if pos is None else list(pos))
    args: tuple[Any, ...] = (logits, idx, torch.tensor(temps), torch.tensor(seeds[: len(temps)]), positions, apply)
    make = fresh(*args, **{CACHE: out, f"{CACHE}_col": col}, use_fp64=fp64)
    return Case(name, make, rounding=STORED)


def sampling_sample(rng: random.Random, name: str = "drawn") -> Case:
    n, states = rng.randrange(1, 5), rng.randrange(1, 7)
    vocab = rng.choice([1, 5, 257, 1024, 1300])
    logits = floats(rng, n, vocab)
    if rng.random() < 0.3:
        logits[:, torch.rand(vocab, generator=torch.Generator().manual_seed(rng.randrange(99))) < 0.5] = -INF
    greedy = rng.random()
    temps = [0.0 if rng.random() < greedy else rng.uniform(0.05, 2.0) for _ in range(states)]
    steps = rng.randrange(1, 4)
    # One row a request, or two would write to one place.
    idx = torch.tensor([i if rng.random() < 0.8 else -1 for i in rng.sample(range(max(n, states)), n)])
    idx[idx >= states] = -1
    drafts = rng.random() < 0.5
    col: torch.Tensor | None = None
    if drafts and (BEFORE_TEMPERATURE or rng.random() < 0.8):
        col = torch.tensor([rng.randrange(steps) for _ in range(n)], dtype=torch.int32)
        col = col[0].clone() if rng.random() < 0.5 else col
    return _sampling(
        name,
        _wide(logits) if rng.random() < 0.3 else logits,
        idx.to(rng.choice([torch.int32, torch.int64])),
        temps,
        seeds=[rng.choice([*SEEDS, rng.randrange(-(2**63), 2**63)]) for _ in range(states)],
        pos=[rng.choice([*POSITIONS, rng.randrange(5000)]) for _ in range(n)],
        apply=drafts,
        out=poison(states, steps, vocab, dtype=torch.float32) if drafts else None,
        col=col,
        fp64=rng.random() < 0.25,
    )


def _greedy_cases(rng: random.Random) -> Iterator[Case]:
    ties = floats(rng, 3, 2100)
    ties[0, [5, 70, 1023, 1024, 2099]] = 40.0
    ties[1, [1500, 1024 + 900, 2050]] = 40.0
    ties[2, [2048, 2099]] = 40.0
    each = torch.tensor([2, 0, 1], dtype=torch.int32)
    yield _sampling("B11_ties_lowest_id_in_and_across_blocks", ties, each, [0.0, 0.0, 0.0])
    flat = torch.full((2, 1100), -INF)
    flat[1] = 3.0
    yield _sampling("all_minus_inf_and_all_equal_give_token_0", flat, each[:2], [0.0, 0.0, 0.0])
    inf = floats(rng, 2, 1100)
    inf[0, [700, 900]] = INF
    inf[1, :1099] = -INF
    yield _sampling("plus_inf_and_a_lone_token_at_the_end", inf, each[:2], [0.0, 0.0, 0.0])
    yield _sampling("bf16", floats(rng, 3, 300, dtype=torch.bfloat16), each, [0.0] * 3)
    yield _sampling("fp64", floats(rng, 2, 300), each[:2], [0.0] * 3, fp64=True)
    yield _sampling("rows_apart", _wide(floats(rng, 3, 1030)), each, [0.0] * 3)
    out = poison(3, 2, 40, dtype=torch.float32)
    some = torch.tensor([2, -1, 0])
    yield _sampling(
        "B7_no_request_stores_nothing", floats(rng, 3, 40), some, [0.0] * 3, apply=True, out=out, col=torch.tensor(1)
    )


def _drafting_cases(rng: random.Random) -> Iterator[Case]:
    temps = [0.7, 0.0, 1.0, 1.6]
    out = poison(4, 3, 50, dtype=torch.float32)
    logits = floats(rng, 4, 50)
    cols = torch.tensor([2, 0, 1, 2], dtype=torch.int32)

    def case(name: str, rows: Sequence[int], col: torch.Tensor | None, where: torch.Tensor = out) -> Case:
        x = logits[: len(rows)].clone()
        return _sampling(name, x, torch.tensor(rows), temps, apply=True, out=where.clone(), col=col)

    yield case("drafts_column_of_a_scalar", [3, 0, 1, 2], torch.tensor(2, dtype=torch.int64))
    yield case("drafts_column_a_row", [3, 0, 1, 2], cols)
    if not BEFORE_TEMPERATURE:
        yield case("drafts_no_column_is_the_first", [3, 0, 1, 2], None)
        yield case("drafts_two_dimensions", [3, 0, 1, 2], None, out[:, 0].contiguous())
    yield case("B7_first_row_has_no_request", [-1, 0, 3, -1], cols)
    yield case("B7_last_row_has_no_request", [2, 1, -1, -1], torch.tensor(0))
    yield case("B7_no_row_has_a_request", [-1, -1, -1], torch.tensor(1))
    yield case("drafts_one_row", [3], torch.tensor(1))
    apart = poison(4, 200, dtype=torch.float32)[:, 20:170].unflatten(1, (3, 50))
    strided = _keeping_strides(logits, [3, -1, 1, 0], temps, apart, cols)
    yield Case("drafts_target_rows_apart", strided, rounding=STORED)
    half = poison(4, 3, 50, dtype=torch.float32).to(torch.float16)
    yield _sampling(
        "drafts_target_of_another_type",
        logits[:2],
        torch.tensor([1, 2]),
        temps,
        apply=True,
        out=half,
        col=torch.tensor(1),
    )


def _keeping_strides(
    logits: torch.Tensor, rows: Sequence[int], temps: Sequence[float], out: torch.Tensor, col: torch.Tensor
) -> Any:
    args = (logits, torch.tensor(rows), torch.tensor(temps), torch.tensor(SEEDS[:4]), torch.arange(4), True)
    return fresh(*args, **{CACHE: out, f"{CACHE}_col": col})


def sampling_cases(rng: random.Random) -> Iterator[Case]:
    yield from _greedy_cases(rng)
    yield from _drafting_cases(rng)
    six = torch.tensor([3, 0, 5, 1, 2, 4], dtype=torch.int32)
    warm = [1.0, 0.5, 0.8, 2.0, 1.3, 0.01]
    yield _sampling("seeds_at_the_limits_positions_over_32_bits", floats(rng, 6, 300), six, warm)
    yield _sampling("fp64_seeds_at_the_limits", floats(rng, 6, 300), six, warm, fp64=True)
    yield _sampling("greedy_and_random_rows_mixed", floats(rng, 6, 1100), six.long(), [1.0, 0.0] * 3)
    flat = torch.zeros(4, 1500)
    yield _sampling("noise_alone_decides", flat, six[:4], [1.0] * 6)
    same = torch.tensor([1, 1, 1])
    yield _sampling("one_request_several_positions", flat[:3], same, [1.0] * 2, pos=[7, 8, 9])
    yield _sampling("one_request_one_position_twice", flat[:2], same[:2], [1.0] * 2, pos=[7, 7])
    none = torch.full((2, 1030), -INF)
    none[1, 1029] = -5.0
    yield _sampling("all_minus_inf_with_noise", none, six[:2], [1.0] * 6)
    yield _sampling("one_token", flat[:2, :1], six[:2], [1.0] * 6)
    yield _sampling("B7_no_request_is_greedy", floats(rng, 3, 60), torch.tensor([-1, 1, -1]), [1.0] * 2)
    yield _sampling("bf16_with_noise", floats(rng, 3, 200, dtype=torch.bfloat16), six[:3], warm, apply=True)
    strided = torch.arange(6, dtype=torch.int32).repeat_interleave(2)[::2]
    yield _sampling("mapping_with_a_stride", floats(rng, 6, 40), strided, warm)
    # More than a piece of the CPU's 2**16 elements.
    many = torch.tensor([i % 6 for i in range(33)])
    yield _sampling("several_pieces", floats(rng, 33, 2050), many, [1.0, 0.0, 0.7, 1.5, 0.0, 0.3])
    for i in range(N_RANDOM):
        yield sampling_sample(rng, f"random{i}")


SITES = (
    Site(
        (17,),
        lambda: original(MODULE, "apply_temperature"),
        "sample_gumbel:apply_temperature",
        temperature_cases,
        temperature_sample,
    ),
    Site(
        (18,),
        lambda: original(MODULE, "gumbel_sample"),
        "sample_gumbel:gumbel_sample",
        sampling_cases,
        sampling_sample,
    ),
    Site((18,), lambda: original(MODULE, "gumbel_sample"), "sample_gumbel:gumbel_sample_greedy", _greedy_cases),
)
