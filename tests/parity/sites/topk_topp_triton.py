# SPDX-License-Identifier: Apache-2.0
"""Site 39: top-k and top-p masks.

The oracle is upstream's kernel in the interpreter, with one expression of it written otherwise (see `_upstream`).
Masks are compared bit by bit. Left out of the inputs, since exp, log and the order of a sum decide there, on every
device in another way: equal tokens at the boundary of top-p (dropped only if log(exp(x)) comes back to x), a mass that
meets p to within rounding, and a p that needs the least probable token of all.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import linecache
import random
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, original, poison

MODULE = "vllm.v1.sample.ops.topk_topp_triton"
INF = float("inf")
# 0.26.0 alone takes logits of 16 bits.
HALVES = (torch.bfloat16, torch.float16) if PIN[:2] == (0, 26) else ()


@functools.cache
def _upstream() -> Any:
    """Upstream's launcher over its own kernel, whose row number the interpreter hands out as a Python integer."""
    module = importlib.import_module(MODULE)
    kernel = module._topk_topp_kernel
    text = inspect.getsource(kernel.fn)
    changed = text.replace("row_id.to(tl.int64)", "tl.full((), row_id, tl.int64)")
    assert text.count("row_id.to(tl.int64)") == 1
    name = "<upstream's _topk_topp_kernel for the interpreter>"
    # The interpreter reads the kernel's source.
    linecache.cache[name] = (len(changed), None, changed.splitlines(keepends=True), name)
    scope = dict(vars(module))
    exec(compile(changed, name, "exec"), scope)
    launcher = original(MODULE, "apply_top_k_top_p_triton")
    return FunctionType(launcher.__code__, scope, launcher.__name__, launcher.__defaults__)


def _case(
    name: str, logits: torch.Tensor, k: Sequence[int] | None, p: Sequence[float] | None, mask_value: float = -INF
) -> Case:
    top_k = None if k is None else torch.tensor(k, dtype=torch.int32)
    return Case(name, fresh(logits, top_k, None if p is None else torch.tensor(p), mask_value))


def _ordered(rng: random.Random, rows: int, vocab: int, gap: float = 0.01) -> torch.Tensor:
    """Shuffled logits no closer than `gap` and steep: both searches end at their target."""
    row = torch.cumsum(torch.rand(vocab, generator=torch.Generator().manual_seed(rng.randrange(2**31))) + gap, 0) / 8
    return torch.stack([row[torch.tensor(rng.sample(range(vocab), vocab))] - rng.random() for _ in range(rows)])


def _between(logits: torch.Tensor, rng: random.Random, k: Sequence[int] | None = None) -> list[float]:
    """A p for each row that lies clearly between two sums of its probabilities."""
    result = []
    for i, row in enumerate(logits):
        kept = row.topk(min(k[i], len(row)) if k else len(row)).values
        mass = kept.double().softmax(0).cumsum(0)
        # Not so much that the last token is needed: the kernel's search starts at it, and rounding decides.
        j = rng.randrange(max(min(int((kept > -INF).sum()) - 1, 40), 1))
        before = float(mass[j - 1]) if j else 0.0
        result.append((before + float(mass[j])) / 2)
    return result


def sample(rng: random.Random, name: str = "drawn") -> Case:
    vocab = rng.choice([2, 40, 256, 300, 700])
    x = _ordered(rng, rng.randrange(1, 4), vocab)
    if rng.random() < 0.3:
        x[:, rng.sample(range(vocab), vocab // 2)] = -INF
    k = [rng.choice([1, vocab, rng.randrange(1, vocab + 1)]) for _ in x]
    kind = rng.choice(["k", "p", "kp"])
    if kind == "k":
        return _case(name, x, k, None)
    # A row with fewer finite logits than k is filtered as if there were no k.
    limits = [n if n < int((row > -INF).sum()) else vocab for n, row in zip(k, x, strict=True)]
    p = [rng.choice([1.0, q]) for q in _between(x, rng, limits if kind == "kp" else None)]
    return _case(name, x, k if kind == "kp" else None, p)


def cases(rng: random.Random) -> Iterator[Case]:
    x = _ordered(rng, 5, 300)
    k = [1, 5, 300, 299, 150]
    yield _case("top_k_exact", x.clone(), k, None)
    yield _case("top_k_off_by_its_value", x.clone(), [300, 301, 300, 9999, 300], None)
    yield _case("top_p", x.clone(), None, _between(x, rng))
    yield _case("top_p_off_by_its_value", x.clone(), None, [1.0, 1.5, 1.0, _between(x[3:4], rng)[0], 1.0])
    yield _case("top_p_tiny_keeps_the_best", x.clone(), None, [1e-6, 0.01, 1e-3, 1e-9, 0.1])
    yield _case("both", x.clone(), k, _between(x, rng, k))
    yield _case(
        "both_with_either_off", x.clone(), [300, 4, 300, 7, 50], [1.0, 1.0, *_between(x[2:], rng, [300, 7, 50])]
    )
    yield _case("neither_returns_the_logits", x.clone(), None, None)
    yield _case("mask_value", x.clone(), k, _between(x, rng, k), -7.5)
    yield from _tie_cases(rng)
    yield from _masked_cases(rng, x)
    flat = floats(rng, 3, 3000, scale=1.0)
    yield _case("flat_top_k", flat.clone(), [1000, 2999, 10], None)
    # The search gives up after 18 halvings and keeps what is above the middle: not the smallest set.
    steep = -1.2 * torch.log(torch.arange(1, 4001, dtype=torch.float64)).float()
    order = torch.tensor(rng.sample(range(4000), 4000))
    yield _case("long_tail_where_top_p_stops_in_between", steep[order].repeat(2, 1), None, [0.9, 0.97])
    home = poison(3, 330, dtype=torch.float32)
    home[:, 10:310] = _ordered(rng, 3, 300)
    inner = home[:, 10:310]
    yield _case("rows_apart_in_place", inner, [3, 300, 20], _between(inner, rng, [3, 300, 20]))
    turned = _ordered(rng, 3, 300).t().contiguous().t()
    yield _case("vocabulary_not_contiguous_gives_a_copy", turned, [3, 300, 20], None)
    yield _case("empty_batch", x[:0].clone(), [], None)
    yield _case("one_token", torch.tensor([[0.5], [-INF]]), [1, 1], [0.5, 0.5])
    yield Case("int64_k_and_fp64_p", fresh(x.clone(), torch.tensor(k), torch.tensor(_between(x, rng, k)).double()))
    for dtype in HALVES:
        # Multiples of 1/8 up to 15, which either type holds: no ties.
        rows = torch.stack([torch.tensor(rng.sample(range(120), 120)) / 8 for _ in range(4)])
        half, some = rows.to(dtype), [1, 7, 119, 120]
        yield _case(f"{str(dtype)[6:]}_top_k", half.clone(), some, None)
        yield _case(f"{str(dtype)[6:]}_top_p", half.clone(), None, _between(rows, rng))
        yield _case(f"{str(dtype)[6:]}_both", half.clone(), some, _between(rows, rng, some), -7.5)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


def _tie_cases(rng: random.Random) -> Iterator[Case]:
    x = _ordered(rng, 4, 300)
    best = x.amax(-1, keepdim=True)
    for row, tokens in enumerate([[5, 6, 290], [0, 299, 150, 7], [100, 101], [255, 256, 257]]):
        x[row, tokens] = best[row] + 1.0
    yield _case("top_k_ties_keep_the_lowest_ids", x.clone(), [2, 3, 1, 2], None)
    yield _case("top_k_ties_that_all_fit", x.clone(), [3, 4, 2, 3], None)
    low = _ordered(rng, 3, 300)
    low[:, 20:90] = low.topk(40, -1).values[:, -1:]
    yield _case("top_k_many_ties_far_down", low, [45, 60, 100], None)
    same = torch.full((3, 300), 1.5)
    same[1, 7] = 9.0
    same[2] = -INF
    yield _case("all_equal_rows_are_left_alone", same.clone(), [4, 1, 4], None)
    # With ties of the maximum log(exp(x)) comes back. What the kernel counts depends on its guess: far below them it
    # drops two here; above them it forgets that top-k had dropped any.
    tied = _ordered(rng, 2, 600)
    tied[0, [3, 50, 77, 590]] = tied.max() + 30.0
    tied[1, ::2], tied[1, 1::2] = 10.0, -10.0
    yield _case("ties_of_the_maximum_under_both", tied, [2, 2], [0.9, 0.9])
    # The kernel's search cannot get below its lowest logit: it keeps fewer than k.
    two = torch.full((2, 40), 3.0)
    two[:, 5] = 5.0
    yield _case("ties_with_the_lowest_logit", two, [2, 39], None)


def _masked_cases(rng: random.Random, x: torch.Tensor) -> Iterator[Case]:
    masked = x.clone()
    masked[:, 8:] = -INF
    yield _case("top_k_of_more_than_the_finite_keeps_all", masked.clone(), [8, 9, 7, 300, 1], None)
    yield _case("top_p_of_a_masked_row", masked.clone(), None, _between(masked[:, :8], rng))
    limits = [8, 8, 7, 8, 1]
    p = _between(masked[:, :8], rng, limits)
    yield _case("top_k_does_not_bind_but_top_p_does", masked.clone(), [8, 9, 7, 300, 1], p)
    lone = torch.full((2, 300), -INF)
    lone[0, 299] = 2.0
    yield _case("one_or_no_finite_logit", lone.clone(), [1, 3], None)
    yield _case("one_or_no_finite_logit_top_p", lone.clone(), None, [0.5, 0.5])


SITES = (Site((39,), _upstream, "topk_topp_triton:apply_top_k_top_p_triton", cases, sample),)
