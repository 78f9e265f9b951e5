# SPDX-License-Identifier: Apache-2.0
"""Sampling where upstream leaves its buffers or the interpreter is no oracle; and how much memory it takes."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pytest
import torch
from sites import sample_logprob
from torch.utils._python_dispatch import TorchDispatchMode

INF = float("inf")
NAN = float("nan")
both = pytest.mark.parametrize("backend", ["torch", "reference"])


def _module(name: str) -> Any:
    return importlib.import_module(f"{harness.kunlun_package()}.{name}")


def _ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


# NaN: on a device tl.max passes over it; NumPy, which the interpreter uses, does not.


@pytest.mark.parametrize("backend", ["torch", "reference", "fused"])
@pytest.mark.parametrize("temp", [0.0, 0.7])
def test_b11_nan_is_never_sampled(backend: str, temp: float) -> None:
    gumbel = harness.implementation("sample_gumbel:gumbel_sample", backend)
    clean = harness.floats(random.Random(3), 4, 1100) - 90.0
    clean[:, [0, 5, 1090]] = -INF
    dirty = clean.clone()
    dirty[:, [0, 5, 1090]] = NAN
    rest = (_ints(0, 0, 0, 0), torch.tensor([temp]), torch.tensor([1]), torch.arange(4), False)
    assert torch.equal(gumbel(dirty, *rest), gumbel(clean, *rest))
    assert gumbel(torch.full((4, 5), NAN), *rest).tolist() == [0] * 4


@both
def test_nan_does_not_lift_the_min_p_threshold(backend: str) -> None:
    logits = torch.tensor([[NAN, 5.0, 1.0, 4.9]])
    harness.implementation("sample_min_p:apply_min_p", backend)(logits, _ints(0), torch.tensor([0.5]))
    assert logits[0].isnan().tolist() == [True, False, False, False]
    assert torch.equal(logits[0, 1:], torch.tensor([5.0, -INF, 4.9]))


def test_top_k_leaves_a_row_with_nan_alone() -> None:
    mask = harness.implementation("topk_topp_triton:apply_top_k_top_p_triton", "torch")
    logits = torch.tensor([[NAN, 5.0, 1.0, 4.9], [0.0, 5.0, 1.0, 4.9]])
    mask(logits, _ints(2, 2), torch.tensor([0.9, 0.9]))
    assert logits[0, 1:].tolist() == torch.tensor([5.0, 1.0, 4.9]).tolist()
    assert logits[1].isfinite().tolist() == [False, True, False, True]


# Rows of no request.


def _option_calls() -> Iterator[Any]:
    pos, none = torch.tensor([1, 2]), _ints(0, 0)
    yield "sample_gumbel:apply_temperature", (torch.tensor([0.5, 0.5]),)
    yield "sample_min_p:apply_min_p", (torch.tensor([0.5, 0.5]),)
    lists = (_ints(1, 1), _ints(0, 0).view(2, 1))
    bias = (*lists, torch.ones(2, 1))
    yield "sample_logit_bias:apply_logit_bias", (pos, *lists, *bias, _ints(99, 99), *lists)
    penalties = (torch.tensor([1.5, 1.5]),) * 3
    yield "sample_penalties:apply_penalties", (none, none, *penalties, _ints(-1, -1).view(2, 1), torch.ones(2, 9).int())
    words = (_ints(3, 3).view(2, 1), _ints(0, 1, 0, 1).view(2, 2), _ints(1, 1))
    yield "sample_bad_words:apply_bad_words", (*words, torch.zeros(2, 4).int(), none, none, none, none, 1)


@pytest.mark.parametrize("backend", ["torch", "reference", "fused"])
@pytest.mark.parametrize("call", list(_option_calls()), ids=lambda call: call[0].partition(":")[2])
def test_b7_rows_of_no_request_are_left_alone(backend: str, call: Any) -> None:
    logits = harness.floats(random.Random(0), 2, 9)
    before = logits.clone()
    harness.implementation(call[0], backend)(logits, _ints(-1, 1), *call[1])
    assert torch.equal(logits[0], before[0])
    assert not torch.equal(logits[1], before[1])


# Tokens outside the vocabulary.


@both
def test_stop_tokens_outside_the_vocabulary_write_nowhere(backend: str) -> None:
    """Upstream writes -inf into the next row. `stop_token_ids` of a request are not checked against the vocabulary."""
    apply = harness.implementation("sample_logit_bias:apply_logit_bias", backend)
    logits, none = torch.zeros(3, 8), torch.zeros(1, 1, dtype=torch.int32)
    stop = _ints(9, 3, -1, 8).view(1, 4)
    off = (_ints(0), none)
    apply(logits[:2], _ints(0, 0), torch.tensor([0, 0]), *off, *off, torch.zeros(1, 1), _ints(9), _ints(4), stop)
    want = torch.zeros(3, 8)
    want[:2, 3] = -INF
    assert torch.equal(logits, want)


@both
def test_allowed_and_biased_tokens_outside_the_vocabulary(backend: str) -> None:
    apply = harness.implementation("sample_logit_bias:apply_logit_bias", backend)
    logits, none = torch.ones(2, 4), torch.zeros(1, 1, dtype=torch.int32)
    lists = (_ints(3), _ints(4, 2, -1).view(1, 3))
    bias, zero = torch.full((1, 3), 5.0), _ints(0)
    apply(logits[:1], zero, torch.tensor([0]), *lists, *lists, bias, zero, zero, none)
    assert logits.tolist() == [[-INF, -INF, 6.0, -INF], [1.0] * 4]


@both
def test_bad_words_outside_the_vocabulary_write_nowhere(backend: str) -> None:
    apply = harness.implementation("sample_bad_words:apply_bad_words", backend)
    logits, zero = torch.zeros(2, 4), _ints(0)
    words, offsets = _ints(5, 2).view(1, 2), _ints(0, 1, 2).view(1, 3)
    apply(logits[:1], zero, words, offsets, _ints(2), torch.zeros(1, 4).int(), zero, zero, zero, zero, 2)
    assert logits.tolist() == [[0.0, 0.0, -INF, 0.0], [0.0] * 4]


@both
def test_prompt_tokens_outside_the_vocabulary_are_not_counted(backend: str) -> None:
    count = harness.implementation("sample_penalties:bincount", backend)
    tokens = _ints(3, 64, -1, 40, 5, 40, -9, 5).view(1, 8)
    bits, counts = harness.poison(2, 2), harness.poison(2, 40)
    other = bits[1].tolist(), counts[1].tolist()
    count(_ints(0), torch.cat([tokens, tokens]), _ints(4, 4), _ints(8, 8), bits, counts, 8)
    assert bits[0].tolist() == [1 << 3, 1 << (40 - 32)]
    assert counts[0].nonzero().tolist() == [[5]] and counts[0, 5] == 2
    assert (bits[1].tolist(), counts[1].tolist()) == other


@both
def test_first_bad_word_empty_forbids_nothing(backend: str) -> None:
    """Upstream reads the token before the list."""
    apply = harness.implementation("sample_bad_words:apply_bad_words", backend)
    logits, zero = torch.zeros(1, 4), _ints(0)
    words, offsets = _ints(1, 2).view(1, 2), _ints(0, 0, 2).view(1, 3)
    apply(logits, zero, words, offsets, _ints(2), torch.zeros(1, 4).int(), zero, zero, zero, zero, 2)
    assert logits.tolist() == [[0.0] * 4]


# Upstream's known bug.


@both
def test_upstream_fix_reads_the_drafted_tokens(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = harness.implementation("sample_bad_words:apply_bad_words", backend)

    def forbidden() -> list[list[int]]:
        logits = torch.zeros(3, 20)
        words = _ints(11, 12, 1, 12, 13, 2).view(1, 6)
        # Output 10, last sampled 11, drafts 12 and 13.
        args = (words, _ints(0, 3, 6).view(1, 3), _ints(2), _ints(10, 11, 0, 0).view(1, 4), _ints(0), _ints(2))
        apply(logits, _ints(0, 0, 0), *args, _ints(11, 12, 13), _ints(0, 1, 2), 2)
        return logits.isinf().nonzero().tolist()

    if harness.PIN < (0, 28):
        # As if the row after one draft ended 10 11 11, and after two 10 11 11 12.
        assert forbidden() == [[2, 1]]
        module = _module(f"{harness.BACKENDS[backend]}.sample_bad_words")
        monkeypatch.setattr(module, "SPEC_OFFSET", 1)
    assert forbidden() == [[1, 1], [2, 2]]


# The greedy path.


def test_b11_greedy_is_decided_by_the_hosts_temperatures() -> None:
    greedy = _module("launchers.sample_gumbel").all_rows_greedy
    temperature = np.array([0.0, 0.7, 0.0, 1.0], dtype=np.float32)
    assert greedy(temperature, np.array([0, 2, 0]))
    assert not greedy(temperature, np.array([0, 1, 2]))
    # A negative row is greedy by definition; NumPy would read the last temperature for it.
    assert greedy(temperature, np.array([-1, 2, -1]))
    assert greedy(temperature, np.array([], dtype=np.int64))


def test_empty_batch_samples_nothing() -> None:
    for name in ("gumbel_sample", "gumbel_sample_greedy"):
        sample = harness.implementation(f"sample_gumbel:{name}", "torch")
        none = torch.zeros(0, dtype=torch.int32)
        out = torch.zeros(2, 1, 9)
        got = sample(torch.zeros(0, 9), none, torch.ones(2), torch.ones(2).long(), none.long(), True, out)
        assert got.shape == (0,) and got.dtype is torch.int64


# Pieces.

SPLIT = (
    "sample_gumbel",
    "sample_min_p",
    "sample_logit_bias",
    "sample_logprob",
    "sample_penalties",
    "sample_bad_words",
    "structured_outputs",
    "topk_topp_triton",
)


# Those that say themselves how much they take at a time.
OF_THEIR_OWN = ("sample_logit_bias", "topk_topp_triton")


def _cases(module: str) -> Iterator[Any]:
    for site in importlib.import_module(f"sites.{module}").SITES:
        for case in site.cases(random.Random(5)):
            yield site.launcher, case


@pytest.mark.parametrize("module", SPLIT)
def test_pieces_of_one_block_give_the_same(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real vocabularies are worked on in pieces; the cases' are too small for more than one."""
    vocab = _module("vocab")
    for launcher, case in _cases(module):
        function = harness.implementation(launcher, "torch")
        states = []
        for size in (vocab.PIECE, 1):
            with monkeypatch.context() as patch:
                patch.setattr(vocab, "PIECE", size)
                patch.setattr(vocab, "RNG_PIECE", {})
                if module in OF_THEIR_OWN:
                    patch.setattr(_module(f"launchers.{module}"), "_PIECE", size)
                args, kwargs = case.make()
                result = function(*args, **kwargs)
            state: dict[str, Any] = {}
            for name, value in {"args": args, "kwargs": kwargs, "result": result}.items():
                harness.walk(name, value, state)
            states.append(state)
        assert states[0].keys() == states[1].keys()
        for path, whole in states[0].items():
            if isinstance(whole, torch.Tensor):
                split = states[1][path]
                close = (1e-6, 4e-6) if module == "sample_logprob" and whole.is_floating_point() else (0.0, 0.0)
                assert torch.allclose(split, whole, *close, equal_nan=True), f"{case.name}: {path}"


class _Largest(TorchDispatchMode):
    """Elements of the largest result that is not a view of an argument, by element size."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = (*args, *(kwargs or {}).values())
        known = {a.untyped_storage().data_ptr() for a in given if isinstance(a, torch.Tensor)}
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                size = x.element_size()
                self.elements[size] = max(self.elements.get(size, 0), x.numel())
        return result


ROWS, VOCAB = 8, 300_000


def _big_calls() -> dict[str, Callable[[], tuple[Any, ...]]]:
    idx, zeros = torch.zeros(ROWS, dtype=torch.int64), torch.zeros(ROWS, dtype=torch.int32)
    one = torch.tensor([0.7])

    def logits() -> torch.Tensor:
        return harness.floats(random.Random(1), ROWS, VOCAB)

    def sample(fp64: bool, drafts: bool) -> tuple[Any, ...]:
        out = torch.zeros(1, 1, VOCAB) if drafts else None
        # One request: the rows write the same place, which only the memory is asked about here.
        return (
            logits(),
            idx,
            one,
            torch.tensor([1]),
            torch.arange(ROWS),
            drafts,
            out,
            torch.tensor(0) if drafts else None,
            fp64,
        )

    penalties = (torch.tensor([1.5]),) * 3
    bits, counts = torch.zeros(1, -(-VOCAB // 32), dtype=torch.int32), torch.zeros(1, VOCAB, dtype=torch.int32)
    return {
        "sample_gumbel:gumbel_sample": lambda: sample(False, False),
        "sample_gumbel:gumbel_sample fp64": lambda: sample(True, False),
        "sample_gumbel:gumbel_sample drafts": lambda: sample(False, True),
        "sample_gumbel:gumbel_sample_greedy": lambda: sample(False, False),
        "sample_min_p:apply_min_p": lambda: (logits(), idx, torch.tensor([0.1])),
        "sample_logprob:compute_token_logprobs": lambda: (logits(), idx.unsqueeze(1)),
        f"sample_logprob:{sample_logprob.TOPK}": lambda: (logits(), 3, idx),
        "sample_penalties:apply_penalties": lambda: (logits(), idx, zeros, zeros, *penalties, bits, counts),
    }


@pytest.mark.parametrize("name", list(_big_calls()))
def test_no_temporary_has_the_size_of_the_logits(name: str) -> None:
    function = harness.implementation(name.partition(" ")[0], "torch")
    args = _big_calls()[name]()
    with _Largest() as largest:
        function(*args)
    assert max(largest.elements.values()) <= 1 << 20 < ROWS * VOCAB, largest.elements
    if "gumbel_sample_greedy" not in name and "gumbel" in name:
        assert largest.elements[8] <= 1 << 16


def test_long_lists_of_tokens_need_one_flag_a_logit() -> None:
    apply = harness.implementation("sample_logit_bias:apply_logit_bias", "torch")
    logits, one = torch.zeros(ROWS, VOCAB), _ints(1)
    ids = torch.arange(1024, dtype=torch.int32).unsqueeze(0)
    lists = (_ints(1000), ids)
    args = (*lists, *lists, torch.ones(1, 1024), one, one, ids[:, :128])
    with _Largest() as largest:
        apply(logits, _ints(*[0] * ROWS), torch.arange(ROWS), *args)
    assert max(n for size, n in largest.elements.items() if size > 1) <= ROWS * 1024


# Pinned memory.


def test_grammar_is_not_pinned_where_nothing_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = _module("launchers.structured_outputs")
    assert not outputs._can_pin("cpu")

    def no_pinning(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("no pinned memory allocator is available on this system")

    outputs._can_pin.cache_clear()
    monkeypatch.setattr(torch, "empty", no_pinning)
    assert not outputs._can_pin("cuda")
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: None)
    # Tried once: the answer does not change.
    assert not outputs._can_pin("cuda")
    outputs._can_pin.cache_clear()
    assert outputs._can_pin("cuda")
    outputs._can_pin.cache_clear()


@both
def test_grammar_that_does_not_fit_the_batch_is_refused(backend: str) -> None:
    apply = harness.implementation("structured_outputs:apply_grammar_bitmask", backend)
    worker = SimpleNamespace(
        logits_indices=torch.zeros(4, dtype=torch.int32), grammar_bitmask=torch.zeros(4, 1, dtype=torch.int32)
    )
    batch = SimpleNamespace(req_ids=["a", "b"], cu_num_logits_np=np.array([0, 1, 2], dtype=np.int32))
    # What it knows of since 0.28.0.
    worker.mask_stride, worker.num_bonus_tokens = 1, 1
    batch.num_draft_tokens_per_req, batch.cu_num_logits = None, torch.arange(3, dtype=torch.int32)
    with pytest.raises(AssertionError):
        apply(worker, torch.zeros(2, 8), batch, ["a"], np.zeros((2, 1), dtype=np.int32))
