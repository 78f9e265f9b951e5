# SPDX-License-Identifier: Apache-2.0
"""Site 38: grammar bitmasks. Bit by bit, the worker's persistent buffers included."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import N_RANDOM, PIN, Case, Site, cumulative, floats, ints, original, poison

MODULE = "vllm.v1.worker.gpu.structured_outputs"
# Since 0.28.0 the device may have fewer logits of a request than were scheduled (adaptive verification).
FEWER = PIN >= (0, 28)
STRIDE, BONUS = 5, 1


def _worker(max_logits: int, words: int) -> Any:
    from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

    scheduled = (STRIDE, BONUS) if FEWER else ()
    worker = StructuredOutputsWorker(max_logits, words * 32, torch.device("cpu"), *scheduled)
    worker.logits_indices.copy_(poison(max_logits))
    worker.grammar_bitmask.copy_(poison(max_logits, words))
    return worker


def _case(
    name: str,
    logits: torch.Tensor,
    lens: Sequence[int],
    grammar: Sequence[int],
    masks: torch.Tensor,
    *,
    max_logits: int = 12,
    kept: Sequence[int] | None = None,
) -> Case:
    """`lens` logits of each request; `grammar` are the requests with a grammar, `masks` their rows.

    kept: how many logits of each the device has; the host counts one a request then.
    """
    cu = np.cumsum([0, *lens] if kept is None else [0, *([1] * len(lens))]).astype(np.int32)

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        batch = SimpleNamespace(req_ids=[f"r{i}" for i in range(len(lens))], cu_num_logits_np=cu.copy())
        if FEWER:
            batch.cu_num_logits = cumulative(lens if kept is None else kept)
            batch.num_draft_tokens_per_req = None
            if kept is not None or max(lens) > 1:
                batch.num_draft_tokens_per_req = np.array(lens, dtype=np.int32) - BONUS
        home = logits.clone() if logits.is_contiguous() else _copy(logits)
        worker = _worker(max_logits, masks.shape[1])
        return (worker, home, batch, [f"r{i}" for i in grammar], masks.numpy().copy()), {}

    # The stream is upstream's stand-in for one.
    return Case(name, make, skip=("arg0.copy_stream",))


def _copy(x: torch.Tensor) -> torch.Tensor:
    home = x._base
    assert home is not None
    return home.clone().as_strided(x.shape, x.stride(), x.storage_offset())


def _masks(rng: random.Random, rows: int, vocab: int) -> torch.Tensor:
    return ints(rng, rows, -(-vocab // 32), low=-(2**31), high=2**31)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    lens = [rng.choice([1, 1, 3]) for _ in range(rng.randrange(1, 5))]
    grammar = rng.sample(range(len(lens)), rng.randrange(0, len(lens) + 1))
    vocab = rng.choice([5, 32, 100])
    rows = sum(lens[i] for i in grammar)
    kept = [rng.randrange(1, n + 1) for n in lens] if FEWER and rng.random() < 0.5 else None
    return _case(name, floats(rng, sum(kept or lens), vocab), lens, grammar, _masks(rng, rows, vocab), kept=kept)


def cases(rng: random.Random) -> Iterator[Case]:
    x = floats(rng, 7, 100)
    lens = [1, 3, 1, 2]
    yield _case("no_grammar_touches_nothing", x, lens, [], _masks(rng, 0, 100))
    yield _case("some_requests_out_of_order", x, lens, [3, 0], _masks(rng, 3, 100))
    yield _case("every_row_of_a_speculating_request", x, lens, [1], _masks(rng, 3, 100))
    yield _case("all_requests", x, lens, [2, 1, 3, 0], _masks(rng, 7, 100), max_logits=7)
    all_bits = torch.tensor([[-1] * 4, [0] * 4], dtype=torch.int32)
    yield _case("all_allowed_and_none_allowed", x, lens, [0, 2], all_bits)
    signs = torch.tensor([[-(2**31)] * 4, [2**31 - 1] * 4], dtype=torch.int32)
    yield _case("sign_bit", x, lens, [0, 2], signs)
    odd = x.clone()
    odd[:, ::3], odd[:, 1::3] = float("nan"), float("-inf")
    yield _case("odd_logits", odd, lens, [1, 2], _masks(rng, 4, 100))
    yield _case("vocabulary_of_whole_words", x[:, :96].clone(), lens, [3, 0], _masks(rng, 3, 96))
    yield _case("bitmask_longer_than_the_logits", x[:, :50].clone(), lens, [3, 0], _masks(rng, 3, 128))
    yield _case("bitmask_shorter_than_the_logits", x, lens, [3, 0], _masks(rng, 3, 64))
    home = poison(7, 150, dtype=torch.float32)
    home[:, 30:130] = x
    yield _case("rows_apart", home[:, 30:130], lens, [1, 0], _masks(rng, 4, 100))
    wide = floats(rng, 2, 8300)
    yield _case("more_than_one_block_of_8192", wide, [1, 1], [1], _masks(rng, 1, 8300))
    yield _case("fp16_logits", x.half(), lens, [3, 0], _masks(rng, 3, 100))
    yield _case("bfloat16_logits", x.to(torch.bfloat16), lens, [1, 0], _masks(rng, 4, 100))
    if FEWER:
        yield _case("fewer_logits_than_scheduled", x[:4], [1, 3, 1, 2], [3, 1], _masks(rng, 5, 100), kept=[1, 1, 1, 1])
        yield _case("fewer_logits_of_all_but_one", x[:5], [3, 3, 3], [0, 1], _masks(rng, 6, 100), kept=[1, 3, 1])
        # No request gets there; nor may anything be written.
        yield _case("no_logits_at_all", x[:1], [1, 2], [1], _masks(rng, 2, 100), kept=[1, 0])
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


class _Unpinned:
    """`torch`, but host memory is never pinned: upstream pins always, and here nothing can."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(*args, **kwargs)


def _upstream() -> Any:
    function = original(MODULE, "StructuredOutputsWorker.apply_grammar_bitmask")
    return FunctionType(function.__code__, {**function.__globals__, "torch": _Unpinned()}, function.__name__)


SITES = (Site((38,), _upstream, "structured_outputs:apply_grammar_bitmask", cases, sample),)
