# SPDX-License-Identifier: Apache-2.0
"""Sites 2 and 3: staged writes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from harness import N_RANDOM, Case, Site, original, poison

MODULE = "vllm.v1.worker.gpu.buffer_utils"
Run = tuple[int, int, Sequence[Any]]  # row, start, values
# How the host's lists cross to the device is upstream's affair, and ours.
SKIP = ("arg0.write_*",)
FUSED_SKIP = (
    "arg0.group_ids",
    "arg0.indices",
    "arg0.starts",
    "arg0.cu_lens",
    "arg1[*].write_*",
    "arg2",
)


def _staged(
    size: int | tuple[int, int],
    dtype: torch.dtype,
    runs: Sequence[Run],
    uva: bool = False,
    elem: bool = False,
    apart: bool = False,
) -> Any:
    """apart: the state is a window of a wider table, so that its rows do not follow one another."""
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    state = StagedWriteTensor(size, dtype, torch.device("cpu"), uva_instead_of_gpu=uva)
    if apart:
        rows, columns = size if isinstance(size, tuple) else (size, 1)
        state.gpu = poison(rows, columns + 5, dtype=dtype)[:, 2 : 2 + columns]
    else:
        state.gpu.copy_(poison(*([size] if isinstance(size, int) else size), dtype=dtype))
    for row, start, values in runs:
        if elem:
            state.stage_write_elem(row, values[0])
        else:
            state.stage_write(row, start, values)
    return state


def _one(
    name: str,
    runs: Sequence[Run],
    size: int | tuple[int, int] = (5, 9),
    dtype: torch.dtype = torch.int32,
    uva: bool = False,
    elem: bool = False,
    apart: bool = False,
) -> Case:
    return Case(name, lambda: ((_staged(size, dtype, runs, uva, elem, apart),), {}), skip=SKIP)


def _runs(rng: random.Random, rows: int, columns: int) -> list[Run]:
    """At most one run a row; upstream's programs for one row would race."""
    runs: list[Run] = []
    for row in rng.sample(range(rows), rng.randrange(0, rows + 1)):
        start = rng.randrange(0, columns)
        n = rng.randrange(0, columns - start + 1)
        runs.append((row, start, [rng.randrange(-(2**31), 2**31) for _ in range(n)]))
    return runs


def one_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows, columns = rng.randrange(1, 7), rng.randrange(1, 12)
    dtype = rng.choice([torch.int32, torch.int64, torch.float32])
    return _one(name, _runs(rng, rows, columns), (rows, columns), dtype, rng.random() < 0.3)


def one_cases(rng: random.Random) -> Iterator[Case]:
    ragged: list[Run] = [(3, 2, [1, -2, 3]), (0, 0, [2**31 - 1]), (4, 8, [9]), (1, 0, list(range(9)))]
    yield _one("nothing_staged", [])
    yield _one("ragged", ragged)
    yield _one("host_resident", ragged, uva=True)
    yield _one("B9_rows_apart", ragged, apart=True)
    yield _one("int64", [(2, 1, [2**40, -(2**63), 2**63 - 1])], dtype=torch.int64)
    yield _one("float32", [(2, 1, [0.1, -0.0, float("inf"), 1e-45]), (0, 0, [3])], dtype=torch.float32)
    yield _one("single_elements_of_a_vector", [(3, 0, [7]), (0, 0, [8])], size=5, elem=True)
    yield _one("row_filled_to_its_end", [(4, 0, list(range(9)))])
    yield _one("an_empty_run_is_not_staged", [(1, 3, []), (2, 0, [5])])
    yield _one("later_run_of_a_row_wins", [(1, 0, [1, 2, 3, 4]), (2, 0, [0]), (1, 2, [7, 8, 9])])
    yield _one("run_longer_than_a_triton_block", [(1, 3, list(range(1500))), (0, 0, [4])], size=(2, 1600))
    for i in range(N_RANDOM):
        yield one_sample(rng, f"random{i}")


def _fused(name: str, groups: Sequence[tuple[tuple[int, int], Sequence[Run]]]) -> Case:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        from vllm.v1.worker.gpu.buffer_utils import FusedStagedWriter

        writer = FusedStagedWriter(torch.device("cpu"), 64)
        states = [_staged(size, torch.int32, runs) for size, runs in groups]
        pointers = torch.tensor([s.gpu.data_ptr() for s in states], dtype=torch.uint64)
        strides = torch.tensor([s.gpu.stride(0) for s in states], dtype=torch.int64)
        return (writer, states, pointers, strides), {}

    return Case(name, make, skip=FUSED_SKIP)


def fused_sample(rng: random.Random, name: str = "drawn") -> Case:
    sizes = [(rng.randrange(1, 5), rng.randrange(1, 9)) for _ in range(rng.randrange(1, 5))]
    return _fused(name, [(size, _runs(rng, *size)) for size in sizes])


def fused_cases(rng: random.Random) -> Iterator[Case]:
    a, b = [(1, 0, [1, 2]), (0, 2, [3])], [(1, 1, [4, 5, 6])]
    yield _fused("groups_of_different_width", [((2, 4), a), ((3, 7), b)])
    yield _fused("a_group_without_writes", [((2, 4), a), ((2, 4), []), ((3, 7), b)])
    yield _fused("first_group_without_writes", [((2, 4), []), ((3, 7), b)])
    yield _fused("nothing_staged", [((2, 4), []), ((2, 4), [])])
    for i in range(N_RANDOM):
        yield fused_sample(rng, f"random{i}")


SITES = (
    Site(
        (2,),
        lambda: original(MODULE, "StagedWriteTensor.apply_write"),
        "buffer_utils:apply_write",
        one_cases,
        one_sample,
    ),
    Site(
        (3,),
        lambda: original(MODULE, "FusedStagedWriter.apply"),
        "buffer_utils:apply",
        fused_cases,
        fused_sample,
    ),
)
