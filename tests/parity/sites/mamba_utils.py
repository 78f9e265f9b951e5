# SPDX-License-Identifier: Apache-2.0
"""Sites 41-44: copies of mamba states between blocks."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, implementation, ints, kunlun_package, original, poison

MODULE = "vllm.v1.worker.mamba_utils"
# Raw addresses, which no two runs share.
ADDRESSES = ("state_base_addrs", "block_table_ptrs")
BLOCK_SIZE, WINDOW, COLUMNS, STATES = 4, 5, 10, 9


def environment(dim_first: bool = False, chunk_bytes: int = 64 << 20) -> None:
    """Set what is global here: upstream's convolution layout, an environment variable there, and the fork's chunk."""
    importlib.import_module(MODULE).is_conv_state_dim_first = lambda: dim_first  # type: ignore[attr-defined]
    chunked = importlib.import_module(f"{kunlun_package()}.launchers.mamba_utils")
    chunked.CHUNK_BYTES = chunk_bytes  # type: ignore[attr-defined]


def config(layers: Sequence[int]) -> SimpleNamespace:
    """KV-cache groups: an attention group, then one mamba group of layers[i] layers for each i."""
    from vllm.v1.kv_cache_interface import MambaSpec

    spec = MambaSpec(BLOCK_SIZE, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    groups = [SimpleNamespace(kv_cache_spec=None, layer_names=["attention"])]
    for group, count in enumerate(layers):
        groups.append(SimpleNamespace(kv_cache_spec=spec, layer_names=[f"mamba{group}.{i}" for i in range(count)]))
    return SimpleNamespace(kv_cache_groups=groups)


def states(kv_cache_config: SimpleNamespace, blocks: int, dim_first: bool, conv: bool) -> dict[str, Any]:
    """A convolution (bfloat16) and a temporal (float32) state a layer, side by side in padded pages."""
    dim, page = 6, 256
    layers: dict[str, Any] = {}
    for group in kv_cache_config.kv_cache_groups[1:]:
        for name in group.layer_names:
            raw = torch.randint(0, 256, (blocks, page), dtype=torch.uint8)
            shape = (blocks, dim, WINDOW) if dim_first else (blocks, WINDOW, dim)
            window = raw.view(torch.bfloat16).as_strided(shape, (page // 2, shape[2], 1))
            temporal = raw.view(torch.float32).as_strided((blocks, 3, 7), (page // 4, 7, 1), 32)
            layers[name] = SimpleNamespace(kv_cache=[window, temporal] if conv else [temporal])
    return layers


def copy_functions(conv: bool) -> tuple[Any, ...]:
    from vllm.model_executor.layers.mamba.mamba_utils import get_conv_copy_spec, get_temporal_copy_spec

    return (get_conv_copy_spec, get_temporal_copy_spec) if conv else (get_temporal_copy_spec,)


def block_tables(rng: random.Random, groups: int, num_reqs: int, blocks: int) -> list[torch.Tensor]:
    """Persistent tables [STATES, COLUMNS] in which no two requests share a block; unused rows are poison."""
    tables = []
    for _ in range(groups):
        table = poison(STATES, COLUMNS)
        table[:num_reqs] = torch.tensor(rng.sample(range(blocks), num_reqs * COLUMNS)).view(num_reqs, COLUMNS)
        tables.append(table)
    return tables


def make_buffer(n: int, dtype: torch.dtype) -> Any:
    from vllm.v1.utils import CpuGpuBuffer

    return CpuGpuBuffer(n, dtype=dtype, device=torch.device("cpu"), pin_memory=False)


def context(
    seed: int,
    num_reqs: int,
    layers: Sequence[int] = (2, 1),
    dim_first: bool = False,
    conv: bool = True,
    first_batch: int | None = None,
) -> tuple[Any, SimpleNamespace, dict[str, Any], list[torch.Tensor]]:
    """An initialised upstream context that holds its tensors, with what it was made from."""
    environment(dim_first)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kv_cache_config = config(layers)
    blocks = STATES * COLUMNS + 3
    layer_states = states(kv_cache_config, blocks, dim_first, conv)
    tables = block_tables(rng, len(layers), num_reqs, blocks)
    functions = copy_functions(conv)
    klass = importlib.import_module(MODULE).MambaSpecDecodeGPUContext
    ctx = klass.create(STATES, kv_cache_config, len(functions), torch.device("cpu"), make_buffer)
    first = [table[: first_batch or num_reqs] for table in tables]
    ctx.initialize_from_forward_context(kv_cache_config, layer_states, functions, first)
    implementation("mamba_utils:hold_tensors", "torch")(ctx, kv_cache_config, layer_states, first)
    ctx.num_accepted_tokens_out = poison(STATES)
    return ctx, kv_cache_config, layer_states, tables


def _case(name: str, make: Callable[[], tuple[Any, ...]], chunk_bytes: int = 64 << 20, **settings: Any) -> Case:
    def build() -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = make()
        environment(settings.get("dim_first", False), chunk_bytes)
        return args, {}

    return Case(name, build, skip=tuple(f"arg0.{field}" for field in ADDRESSES))


def _precopy(
    rng: random.Random,
    name: str,
    moves: Sequence[tuple[int, int, int]],
    skipped: Sequence[int] = (),
    idx_dtype: torch.dtype = torch.int32,
    chunk_bytes: int = 64 << 20,
    mapped: bool = True,
    **settings: Any,
) -> Case:
    """moves: (src column, dst column, bias) a request; rows in `skipped` have no state. Not mapped: no idx_mapping."""
    seed = rng.randrange(2**30)
    n = len(moves)
    slots = rng.sample(range(STATES), n) if mapped else range(n)

    def make() -> tuple[Any, ...]:
        ctx = context(seed, n, **settings)[0]
        src, dst, bias = poison(STATES), poison(STATES), poison(STATES)
        for slot, move in zip(slots, moves, strict=True):
            src[slot], dst[slot], bias[slot] = move
        idx = torch.tensor([-1 if row in skipped else slot for row, slot in enumerate(slots)], dtype=idx_dtype)
        return ctx, n, dst, src, bias, idx if mapped else None

    return _case(name, make, chunk_bytes, **settings)


def _moves(rng: random.Random, n: int) -> list[tuple[int, int, int]]:
    return [
        (rng.randrange(-1, COLUMNS - WINDOW), rng.randrange(COLUMNS), rng.randrange(0, WINDOW + 1)) for _ in range(n)
    ]


def precopy_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(1, STATES)
    return _precopy(
        rng,
        name,
        _moves(rng, n),
        [row for row in range(n) if rng.random() < 0.2],
        rng.choice([torch.int32, torch.int64]),
        rng.choice([64 << 20, 300]),
        dim_first=rng.random() < 0.4,
        layers=rng.choice([(1,), (2, 1), (1, 1, 1)]),
    )


def precopy_cases(rng: random.Random) -> Iterator[Case]:
    yield _precopy(rng, "boundary_with_accepted_bias", [(0, 1, 0), (2, 3, 2), (4, 6, 1)])
    yield _precopy(rng, "nothing_to_move", [(-1, 0, 0), (3, 3, 2), (-1, 4, 1)])
    yield _precopy(rng, "skipped_rows", [(0, 1, 0), (2, 3, 1), (1, 2, 3)], skipped=(0, 2))
    yield _precopy(rng, "all_rows_skipped", [(0, 1, 0), (2, 3, 1)], skipped=(0, 1))
    yield _precopy(rng, "one_active_among_idle", [(1, 1, 0), (-1, 2, 0), (2, 5, 4), (0, 0, 3)])
    yield _precopy(rng, "rows_in_chunks", _moves(rng, 8), chunk_bytes=300)
    yield _precopy(rng, "one_row_a_chunk", _moves(rng, 5), chunk_bytes=1)
    yield _precopy(rng, "dim_first_layout", [(0, 1, 0), (2, 3, 2), (-1, 6, 1)], dim_first=True)
    yield _precopy(rng, "temporal_only", [(0, 1, 0), (2, 3, 2)], conv=False)
    yield _precopy(rng, "batch_larger_than_the_first_one", _moves(rng, 6), first_batch=2)
    yield _precopy(rng, "bias_as_long_as_the_window", [(0, 1, WINDOW), (2, 3, 0)])
    yield _precopy(rng, "empty_batch", [], first_batch=1)
    if PIN >= (0, 27):
        yield _precopy(rng, "arrays_in_the_order_of_the_batch", [(0, 1, 0), (2, 3, 2), (-1, 6, 1)], mapped=False)
    for i in range(N_RANDOM):
        yield precopy_sample(rng, f"random{i}")


def _accepted(rng: random.Random, single_state: bool) -> tuple[int, int, int]:
    """(accepted, source column, computed after the step) of a request.

    In upstream's kernel the program of state 0 resets the accepted count that its siblings read; where a shift within
    one block makes that visible, only a single state has a defined result.
    """
    accepted = rng.randrange(1, 5)
    computed = rng.randrange(accepted, BLOCK_SIZE * (COLUMNS - 4))
    full = computed // BLOCK_SIZE
    bias = full * BLOCK_SIZE - (computed - accepted + 1)
    source = full - 1 if rng.random() < 0.5 and full else rng.randrange(COLUMNS - 4)
    if not single_state and source == full - 1 and bias > 0:
        source = full
    return accepted, source, computed


def _align(
    rng: random.Random,
    name: str,
    rows: Sequence[tuple[int, int, int]],
    skipped: Sequence[int] = (),
    idx_dtype: torch.dtype = torch.int32,
    **settings: Any,
) -> Case:
    seed = rng.randrange(2**30)
    n = len(rows)
    slots = rng.sample(range(STATES), n)

    def make() -> tuple[Any, ...]:
        ctx = context(seed, n, **settings)[0]
        arrays = accepted, source, computed = poison(STATES), poison(STATES), poison(STATES)
        for slot, row in zip(slots, rows, strict=True):
            for array, value in zip(arrays, row, strict=True):
                array[slot] = value
        idx = torch.tensor([-1 if row in skipped else slot for row, slot in enumerate(slots)], dtype=idx_dtype)
        return ctx, n, accepted, source, computed, idx

    return _case(name, make, **settings)


def align_sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(1, STATES)
    single = rng.random() < 0.3
    return _align(
        rng,
        name,
        [_accepted(rng, single) for _ in range(n)],
        [row for row in range(n) if rng.random() < 0.2],
        rng.choice([torch.int32, torch.int64]),
        dim_first=rng.random() < 0.4,
        **({"layers": (1,), "conv": False} if single else {}),
    )


def align_cases(rng: random.Random) -> Iterator[Case]:
    yield _align(rng, "saved_to_the_full_block", [(4, 2, 9), (3, 2, 8), (1, 0, 3)])
    yield _align(rng, "stays_in_its_column", [(1, 1, 8), (2, 1, 9), (1, 0, 5)])
    yield _align(rng, "shift_within_the_column", [(4, 1, 10), (3, 1, 9)], layers=(1,), conv=False)
    yield _align(rng, "skipped_rows", [(4, 2, 9), (1, 1, 8), (3, 1, 8)], skipped=(1, 2))
    yield _align(rng, "not_yet_a_full_block", [(1, 0, 1), (2, 0, 3), (1, 3, 15), (2, 1, 11)])
    yield _align(rng, "dim_first_layout", [(4, 2, 9), (3, 4, 8)], dim_first=True)
    for i in range(N_RANDOM):
        yield align_sample(rng, f"random{i}")


def _post(rng: random.Random, name: str, rows: Sequence[tuple[int, int, int, int, int]], **settings: Any) -> Case:
    """rows: (accepted, source column, scheduled, computed before, drafts) a request."""
    seed = rng.randrange(2**30)
    n = len(rows)

    def make() -> tuple[Any, ...]:
        ctx = context(seed, n, **settings)[0]
        arrays = [poison(STATES) for _ in range(5)]
        for i, row in enumerate(rows):
            for array, value in zip(arrays, row, strict=True):
                array[i] = value
        return ctx, n, *arrays

    return _case(name, make, **settings)


def post_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = []
    for _ in range(rng.randrange(1, STATES)):
        drafts = rng.randrange(0, 5)
        computed = rng.randrange(0, BLOCK_SIZE * (COLUMNS - 5))
        accepted = rng.randrange(1, drafts + 2)
        full = (computed + accepted) // BLOCK_SIZE
        rows.append((accepted, rng.choice([max(full - 1, 0), full]), drafts + 1, computed, drafts))
    return _post(rng, name, rows, dim_first=rng.random() < 0.4, conv=rng.random() < 0.7)


def post_cases(rng: random.Random) -> Iterator[Case]:
    yield _post(rng, "saved_to_the_full_block", [(4, 2, 5, 5, 4), (1, 1, 5, 7, 4)])
    yield _post(rng, "shift_within_the_column", [(4, 1, 5, 6, 4), (3, 1, 4, 6, 3), (1, 1, 1, 7, 0)])
    yield _post(rng, "not_yet_a_full_block", [(2, 1, 4, 9, 3), (3, 0, 5, 2, 4)])
    yield _post(rng, "no_drafts", [(1, 0, 1, 3, 0), (1, 0, 4, 0, 0), (1, 1, 7, 0, 0)])
    yield _post(rng, "empty_batch", [], first_batch=1)
    for i in range(N_RANDOM):
        yield post_sample(rng, f"random{i}")


def _memcpy(rng: random.Random, name: str, sizes: Sequence[int]) -> Case:
    width = 4000
    content = ints(rng, len(sizes) * width, low=0, high=256, dtype=torch.uint8)

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        # Source, destination and sizes in one storage, of which the harness compares every byte.
        raw = torch.cat([content, content.flip(0), poison(4 * len(sizes) + 8, dtype=torch.uint8)])
        size = raw[2 * len(content) : 2 * len(content) + 4 * len(sizes)].view(torch.int32)
        size.copy_(torch.tensor(sizes))
        pointers = [
            torch.tensor([raw.data_ptr() + at + i * width for i in range(len(sizes))], dtype=torch.uint64)
            for at in (0, len(content))
        ]
        return (*pointers, size), {}

    return Case(name, make, skip=("arg0", "arg1"))


def memcpy_cases(rng: random.Random) -> Iterator[Case]:
    yield _memcpy(rng, "ragged_sizes", [1, 1024, 0, 3999, 1025])
    yield _memcpy(rng, "empty_batch", [])


def _site(
    ident: int,
    function: str,
    cases: Callable[[random.Random], Iterator[Case]],
    sample: Callable[[random.Random], Case],
) -> Site:
    return Site(
        (ident,),
        lambda: original(MODULE, f"MambaSpecDecodeGPUContext.{function}"),
        f"mamba_utils:{function}",
        cases,
        sample,
    )


SITES = (
    _site(41, "run_fused_postprocess", post_cases, post_sample),
    _site(42, "run_fused_postprocess_align", align_cases, align_sample),
    _site(43, "run_fused_precopy", precopy_cases, precopy_sample),
    # The torch backend refuses raw addresses: tests/parity/test_mamba_refused.py.
    Site(
        (44,),
        lambda: original(MODULE, "batch_memcpy"),
        "mamba_utils:batch_memcpy",
        memcpy_cases,
        backends=("reference",),
    ),
)
