# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1: block tables of the batch and slot mappings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from harness import N_RANDOM, PIN, Case, Site, cumulative, original, poison

MODULE = "vllm.v1.worker.gpu.block_table"
# Raw addresses differ from run to run; the writers' pools are upstream's own staging.
SKIP = (
    "arg0.*_ptrs",
    "arg0.block_tables[*].write_*",
    "arg0.fused_writer",
    "arg0.num_blocks.pool",
    "kw.out_ptrs",
)
# Since 0.26.0 the caller may name another target.
TARGETS = PIN >= (0, 26)


def _tables(
    max_reqs: int,
    max_tokens: int,
    manager: Sequence[int],
    kernel: Sequence[int],
    blocks: Sequence[int],
    cp: tuple[int, int, int] = (1, 0, 1),
) -> Any:
    from vllm.v1.worker.gpu.block_table import BlockTables

    tables = BlockTables(list(manager), max_reqs, max_tokens, list(blocks), torch.device("cpu"), list(kernel), *cp)
    for i, (table, target) in enumerate(zip(tables.block_tables, tables.input_block_tables, strict=True)):
        # In place: upstream's kernels hold these addresses.
        n = table.gpu.numel()
        table.gpu.copy_((torch.arange(n, dtype=torch.int32) * 7 + i).view_as(table.gpu) % 997 + 1)
        target.copy_(poison(*target.shape))
    tables.slot_mappings.copy_(poison(*tables.slot_mappings.shape, dtype=torch.int64))
    return tables


def _gather(
    name: str,
    idx: torch.Tensor,
    padded: int,
    num_blocks: Sequence[Sequence[int]],
    widths: Sequence[int],
    max_reqs: int = 6,
    target_rows: int | None = None,
) -> Case:
    """target_rows: of tables of the caller's own to gather into."""

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        sizes = [16] * len(widths)
        tables = _tables(max_reqs, 32, sizes, sizes, widths)
        tables.num_blocks.np[:] = np.reshape(num_blocks, (len(widths), max_reqs))
        tables.num_blocks.copy_to_uva()
        kwargs: dict[str, Any] = {}
        if target_rows is not None:
            kwargs["out"] = tuple(poison(target_rows, table.shape[1]) for table in tables.input_block_tables)
            kwargs["out_ptrs"] = torch.tensor([table.data_ptr() for table in kwargs["out"]], dtype=torch.uint64)
        return (tables, idx.clone(), padded), kwargs

    return Case(name, make, skip=SKIP)


def _idx(rng: random.Random, max_reqs: int, n: int) -> torch.Tensor:
    return torch.tensor(rng.sample(range(max_reqs), n), dtype=rng.choice([torch.int32, torch.int64]))


def gather_sample(rng: random.Random, name: str = "drawn") -> Case:
    max_reqs = rng.randrange(1, 7)
    widths = [rng.randrange(1, 6) for _ in range(rng.randrange(1, 4))]
    n = rng.randrange(0, max_reqs + 1)
    padded = rng.randrange(max(n, 1), max_reqs + 1)
    num_blocks = [[rng.randrange(0, w + 1) for _ in range(max_reqs)] for w in widths]
    rows = padded + rng.randrange(3) if TARGETS and rng.random() < 0.3 else None
    return _gather(name, _idx(rng, max_reqs, n), padded, num_blocks, widths, max_reqs, rows)


def gather_cases(rng: random.Random) -> Iterator[Case]:
    some = [[3, 0, 5, 1, 2, 4]]
    for dtype in (torch.int32, torch.int64):
        idx = torch.tensor([4, 0, 2], dtype=dtype)
        yield _gather(f"B5_tail_stays_stale_{str(dtype)[6:]}", idx, 3, some, [5])
    idx = torch.tensor([5, 1], dtype=torch.int32)
    yield _gather("padding_rows_zeroed_rows_behind_kept", idx, 4, some, [5])
    yield _gather("several_groups_of_different_width", idx, 3, [some[0], [1, 2, 0, 0, 0, 7]], [5, 7])
    yield _gather("empty_batch_padded", idx[:0], 2, some, [5])
    yield _gather("wider_than_a_triton_block", idx, 2, [[0, 1100, 0, 0, 0, 1500]], [1500])
    yield _gather("no_blocks_at_all", idx, 2, [[0] * 6], [5])
    if PIN >= (0, 28):
        yield _gather("no_cache_group", idx, 4, [], [])
    if TARGETS:
        yield _gather("into_tables_of_the_caller", idx, 4, [some[0], [1, 2, 0, 0, 0, 7]], [5, 7], target_rows=9)
    for i in range(N_RANDOM):
        yield gather_sample(rng, f"random{i}")


def _slots(
    name: str,
    lens: Sequence[int],
    *,
    idx: torch.Tensor,
    kernel: Sequence[int] = (4,),
    manager: Sequence[int] | None = None,
    blocks: Sequence[int] = (16,),
    computed: Sequence[int] | None = None,
    max_tokens: int = 40,
    padded: int | None = None,
    stale: int = 0,
    qsl_pad: int = 0,
    cp: tuple[int, int, int] = (1, 0, 1),
    target: int | None = None,
) -> Case:
    """Rows of `lens` tokens that follow `computed` ones; `stale` garbage positions behind the last token.

    target: entries of a buffer of the caller's own.
    """
    total = sum(lens)
    starts = list(computed or [3 * i for i in range(len(lens))])
    positions = poison(total + stale, dtype=torch.int64)
    at = 0
    for start, n in zip(starts, lens, strict=True):
        positions[at : at + n] = torch.arange(start, start + n)
        at += n
    qsl = cumulative(lens, len(lens) + 1 + qsl_pad)

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        tables = _tables(6, max_tokens, manager or kernel, kernel, blocks, cp)
        end = total if padded is None else padded
        kwargs = {} if target is None else {"out": poison(len(kernel), target, dtype=torch.int64)}
        return (tables, idx.clone(), qsl.clone(), positions.clone(), end), kwargs

    return Case(name, make, skip=SKIP)


def slots_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(0, 7)
    lens = [rng.choice([0, 1, 1, 2, 5]) for _ in range(n)]
    groups = rng.randrange(1, 4)
    kernel = [rng.choice([2, 4, 8]) for _ in range(groups)]
    size = rng.choice([1, 1, 2, 4])
    total = sum(lens)
    return _slots(
        name,
        lens,
        idx=_idx(rng, 6, n),
        kernel=kernel,
        manager=[k * rng.choice([1, 2]) for k in kernel],
        # 64 positions fit: a table row is never left.
        blocks=[32] * groups,
        computed=[rng.randrange(0, 50) for _ in range(n)],
        padded=rng.randrange(total, 41),
        stale=rng.randrange(0, 41 - total),
        qsl_pad=rng.randrange(0, 3),
        cp=(size, rng.randrange(size), rng.choice([1, 2])),
        target=rng.randrange(total, 60) if TARGETS and rng.random() < 0.3 else None,
    )


def slots_cases(rng: random.Random) -> Iterator[Case]:
    idx32 = torch.tensor([4, 0, 2], dtype=torch.int32)
    yield _slots("decode", [1, 1, 1], idx=idx32)
    # The same shapes, for a replay of the one on the other.
    others = torch.tensor([1, 5, 3], dtype=torch.int32)
    yield _slots("decode_of_other_requests", [1, 1, 1], idx=others, computed=[17, 1, 30])
    yield _slots("int64_rows", [1, 1, 1], idx=idx32.long())
    yield _slots("ragged_with_a_row_of_none", [5, 0, 3], idx=idx32)
    yield _slots("pads_to_the_buffer_not_to_the_batch", [5, 1, 3], idx=idx32, padded=12, stale=3)
    yield _slots("stale_positions_are_not_read", [5, 1, 3], idx=idx32, stale=31)
    yield _slots("query_start_loc_padded", [2, 1, 3], idx=idx32, qsl_pad=3, padded=8, stale=2)
    yield _slots("empty_batch", [], idx=idx32[:0], padded=4, stale=4)
    yield _slots("full_buffer", [20, 15, 5], idx=idx32, computed=[0, 0, 0])
    # To be replayed on what was captured with the other.
    yield _slots("full_buffer_of_other_rows", [5, 14, 21], idx=idx32.flip(0) + 1, computed=[7, 40, 1])
    yield _slots(
        "kernel_blocks_split_manager_blocks",
        [5, 1, 3],
        idx=idx32,
        kernel=[4, 8],
        manager=[16, 8],
        blocks=[4, 6],
    )
    yield _slots("a_row_at_max_model_len", [1, 4, 1], idx=idx32, computed=[63, 60, 0])
    yield _slots("longer_than_a_triton_block", [1, 1100], idx=idx32[:2], blocks=[300], max_tokens=1200)
    if TARGETS:
        for width in (9, 70):
            yield _slots(f"into_a_buffer_of_{width}", [5, 1, 3], idx=idx32, padded=9, stale=31, target=width)
    for size, interleave in ((2, 1), (2, 4), (4, 2), (3, 1)):
        for rank in range(size):
            yield _slots(
                f"B10_cp{size}_rank{rank}_interleave{interleave}",
                [9, 1, 14],
                idx=idx32,
                stale=3,
                kernel=[8],
                cp=(size, rank, interleave),
            )
    for i in range(N_RANDOM):
        yield slots_sample(rng, f"random{i}")


SITES = (
    Site(
        (0,),
        lambda: original(MODULE, "BlockTables.gather_block_tables"),
        "block_table:gather_block_tables",
        gather_cases,
        gather_sample,
    ),
    Site(
        (1,),
        lambda: original(MODULE, "BlockTables.compute_slot_mappings"),
        "block_table:compute_slot_mappings",
        slots_cases,
        slots_sample,
    ),
)
