# SPDX-License-Identifier: Apache-2.0
"""The random numbers against Triton's own, in the interpreter, and against Philox in Python integers."""

from __future__ import annotations

import importlib
from typing import Any

import harness
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.v1.worker.gpu.sample.gumbel import tl_rand32, tl_rand64

rng = importlib.import_module(f"{harness.kunlun_package()}.rng")
reference = importlib.import_module(f"{harness.kunlun_package()}.reference.rng")

SEEDS = (0, 1, -1, 2**63 - 1, -(2**63), 12345, 2**32, 2**32 - 1, 2**40 + 7)
N = 128
INT64 = st.integers(-(2**63), 2**63 - 1)


@triton.jit
def _words_kernel(seed_ptr, offset_ptr, out_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    words = tl.randint4x(tl.load(seed_ptr), tl.load(offset_ptr + lane))
    tl.store(out_ptr + lane, words[0].to(tl.int64))
    tl.store(out_ptr + BLOCK + lane, words[1].to(tl.int64))
    tl.store(out_ptr + 2 * BLOCK + lane, words[2].to(tl.int64))
    tl.store(out_ptr + 3 * BLOCK + lane, words[3].to(tl.int64))


@triton.jit
def _uniforms_kernel(seed_ptr, offset_ptr, out32_ptr, out64_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    offset = tl.load(offset_ptr + lane)
    tl.store(out32_ptr + lane, tl_rand32(tl.load(seed_ptr), offset, includes_zero=False))
    tl.store(out64_ptr + lane, tl_rand64(tl.load(seed_ptr), offset, includes_zero=False))


@triton.jit
def _hashed_kernel(seed_ptr, pos_ptr, out32_ptr, out64_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    # As upstream draws Gumbel noise: the key is itself a random word, unsigned.
    key = tl.randint(tl.load(seed_ptr), tl.load(pos_ptr))
    tl.store(out32_ptr + lane, tl_rand32(key, lane, includes_zero=False))
    tl.store(out64_ptr + lane, tl_rand64(key, lane, includes_zero=False))


def _offsets(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    if dtype is torch.int32:
        drawn = torch.randint(-(2**31), 2**31, (N - 4,), generator=generator)
        return torch.cat([torch.tensor([0, 1, -1, 2**31 - 1]), drawn]).to(dtype)
    drawn = torch.randint(-(2**62), 2**62, (N - 5,), generator=generator)
    return torch.cat([torch.tensor([0, -1, 2**32, 2**32 - 1, 2**63 - 1]), drawn])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("seed", SEEDS)
def test_words_equal_tritons(seed: int, dtype: torch.dtype) -> None:
    offset, key = _offsets(dtype), torch.tensor([seed])
    want = torch.empty(4, N, dtype=torch.int64)
    _words_kernel[(1,)](key, offset, want, BLOCK=N)
    got = rng.philox(key, offset)
    assert torch.equal(torch.stack(got), want & 0xFFFFFFFF)
    assert torch.equal(rng.randint(key, offset), got[0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("seed", SEEDS)
def test_uniforms_equal_upstreams_bit_by_bit(seed: int, dtype: torch.dtype) -> None:
    offset, key = _offsets(dtype), torch.tensor([seed])
    want32, want64 = torch.empty(N), torch.empty(N, dtype=torch.float64)
    _uniforms_kernel[(1,)](key, offset, want32, want64, BLOCK=N)
    got32, got64 = rng.uniform32(key, offset), rng.uniform64(key, offset)
    assert (got32.dtype, got64.dtype) == (torch.float32, torch.float64)
    assert torch.equal(got32.view(torch.int32), want32.view(torch.int32))
    assert torch.equal(got64.view(torch.int64), want64.view(torch.int64))


def test_noise_of_several_requests_at_once() -> None:
    """One call for keys [n, 1] and ids [1, m] draws what upstream draws row by row."""
    seeds, pos = torch.tensor(SEEDS), torch.tensor([3, 2**32, 2**40 + 1, 0, 7, 8, 9, 2**62, 11])
    want = [(torch.empty(N), torch.empty(N, dtype=torch.float64)) for _ in SEEDS]
    for i, (want32, want64) in enumerate(want):
        _hashed_kernel[(1,)](seeds[i : i + 1], pos[i : i + 1], want32, want64, BLOCK=N)
    key = rng.randint(seeds, pos).unsqueeze(1)
    ids = torch.arange(N).unsqueeze(0)
    u32, u64 = torch.stack([w[0] for w in want]), torch.stack([w[1] for w in want])
    assert torch.equal(rng.gumbel_noise(key, ids, False), -torch.log(-torch.log1p(-u32)))
    assert torch.equal(rng.gumbel_noise(key, ids, True), -torch.log(-torch.log(u64)))


def test_published_vector() -> None:
    want = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(w) for w in rng.philox(torch.tensor(0), torch.tensor(0))] == want
    assert list(reference.philox(0, 0)) == want


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(seed=INT64, offset=INT64)
def test_words_equal_the_references(seed: int, offset: int) -> None:
    got = rng.philox(torch.tensor(seed), torch.tensor(offset))
    assert tuple(int(w) for w in got) == reference.philox(seed, offset)


def test_32_bit_seeds_are_extended_and_32_bit_offsets_are_not() -> None:
    minus_one = torch.tensor(-1, dtype=torch.int32)
    got = [int(w) for w in rng.philox(minus_one, minus_one)]
    assert tuple(got) == reference.philox(-1, 2**32 - 1) != reference.philox(-1, -1)


@pytest.mark.parametrize("word", [0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_uniforms_at_the_ends(word: int) -> None:
    u = rng._uniform32(torch.tensor([word]))
    assert torch.equal(u, reference.uniform32([word]))
    assert 0 < float(u) < 1
    for low, high in ((word, 0), (0, word), (word, 2**32 - 1)):
        u = rng._uniform64(torch.tensor([low]), torch.tensor([high]))
        assert torch.equal(u, reference.uniform64([(low, high)]))
        assert 0 < float(u) <= 1


def test_shapes_broadcast() -> None:
    def shape(seed: Any, offset: Any) -> list[torch.Size]:
        words = rng.philox(torch.zeros(seed, dtype=torch.int64), torch.zeros(offset, dtype=torch.int64))
        return [w.shape for w in words]

    assert shape((3, 1), (1, 5)) == [(3, 5)] * 4
    assert shape((), (4,)) == [(4,)] * 4
    assert shape((0, 1), (1, 5)) == [(0, 5)] * 4
    assert rng.gumbel_noise(torch.zeros(0, 1, dtype=torch.int64), torch.arange(5)[None], False).shape == (0, 5)
