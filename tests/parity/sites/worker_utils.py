# SPDX-License-Identifier: Apache-2.0
"""Site 40: zeroing of new KV cache blocks."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, kunlun_package, original, poison

MODULE = "vllm.v1.worker.utils"
HEADS, SIZE = 2, 4
DIFFERENT_PAGES = PIN >= (0, 27)
# Blocks may lie further apart than they are long since 0.28.0.
PACKED = PIN >= (0, 28)
# Ids behind the last one given are what malloc left; the addresses differ from run to run.
SKIP = ("arg0._meta", "arg0._ids_pinned", "arg0._ids_gpu")


def _zeroer(
    kernel: int, ratio: int, blocks: int, layout: str, dtype: torch.dtype, layers: int, shared: bool, wide: bool
) -> Any:
    """A zeroer over `layers` caches of `blocks` manager blocks of `ratio` kernel blocks, and the caches.

    wide: in a second group, one more of twice as many heads (pages of different size: since 0.27.1).
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.utils import KVBlockZeroer

    n = blocks * ratio
    shapes = {
        "kv_first": ((2, n, kernel, HEADS, SIZE), 1),
        "blocks_first": ((n, 2, kernel, HEADS, SIZE), 0),
        # Blocks outermost in memory, not in shape.
        "permuted": ((n, 2, kernel, HEADS, SIZE), 1),
        # The caches of all layers side by side in each block.
        "packed": ((n, 2, kernel, HEADS, SIZE), 0),
    }
    shape, block_dim = shapes[layout]
    caches = []
    home = poison(n, 2 * layers, *shape[2:], dtype=dtype)
    for i in range(layers):
        if layout == "packed":
            caches.append(home[:, 2 * i : 2 * i + 2])
            continue
        cache = caches[0] if shared and caches else poison(*shape, dtype=dtype)
        caches.append(cache.transpose(0, 1) if layout == "permuted" and cache.shape[0] == n else cache)
    spec = FullAttentionSpec(block_size=kernel * ratio, num_kv_heads=HEADS, head_size=SIZE, dtype=dtype)
    backend = SimpleNamespace(get_kv_cache_block_dim=lambda *a, **k: block_dim)
    names = [f"layer{i}" for i in range(layers)]
    group = SimpleNamespace(kv_cache_spec=spec, kv_cache_group_id=0, backend=backend, layer_names=list(names))
    groups = [group, SimpleNamespace(kv_cache_spec=object(), kv_cache_group_id=2)]
    if wide:
        cache = poison(*shape[:-2], 2 * HEADS, SIZE, dtype=dtype)
        caches.append(cache.transpose(0, 1) if layout == "permuted" else cache)
        names.append("wide")
        second = FullAttentionSpec(block_size=kernel * ratio, num_kv_heads=2 * HEADS, head_size=SIZE, dtype=dtype)
        groups.append(
            SimpleNamespace(kv_cache_spec=second, kv_cache_group_id=1, backend=backend, layer_names=names[-1:])
        )
    context = {name: SimpleNamespace(kv_cache=cache) for name, cache in zip(names, caches, strict=True)}
    pinned: tuple[bool, ...] = (False,) if PIN < (0, 27) else ()
    concurrency = {"max_concurrency": 2} if PIN[:2] == (0, 26) else {}
    zeroer = KVBlockZeroer(torch.device("cpu"), *pinned, iter(groups), [kernel] * 2, "auto", context, **concurrency)
    # As the fork does behind upstream's __init__; a state space layer holds a list there.
    importlib.import_module(f"{kunlun_package()}.kv_segments").keep_kv_caches(zeroer, [[poison(3)], *caches])
    return zeroer, caches


def _case(
    name: str,
    ids: Sequence[int],
    *,
    kernel: int = 4,
    ratio: int = 1,
    blocks: int = 5,
    layout: str = "kv_first",
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    shared: bool = False,
    capacity: int | None = None,
    wide: bool = False,
) -> Case:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        zeroer, caches = _zeroer(kernel, ratio, blocks, layout, dtype, layers, shared, wide)
        # The caches hang on the zeroer, so that they are compared.
        zeroer.caches = caches
        if capacity is not None:
            zeroer._id_cap = capacity
            if PIN < (0, 26):
                zeroer._ids_pinned = zeroer._ids_gpu = torch.empty(capacity, dtype=torch.int64)
            else:
                zeroer._allocate_id_buffers()
        return (zeroer, list(ids)), {}

    return Case(name, make, skip=SKIP)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    blocks = rng.randrange(1, 7)
    return _case(
        name,
        rng.sample(range(blocks), rng.randrange(0, blocks + 1)),
        kernel=rng.choice([1, 2, 3, 8]),
        ratio=rng.choice([1, 1, 2, 3]),
        blocks=blocks,
        layout=rng.choice(["kv_first", "blocks_first", "permuted", *(["packed"] if PACKED else [])]),
        dtype=rng.choice([torch.float32, torch.bfloat16, torch.uint8]),
        layers=rng.randrange(1, 4),
        shared=rng.random() < 0.3,
        wide=DIFFERENT_PAGES and rng.random() < 0.3,
    )


def cases(rng: random.Random) -> Iterator[Case]:
    for layout in ("kv_first", "blocks_first", "permuted"):
        yield _case(f"{layout}_first_and_last_block", [4, 0], layout=layout)
        yield _case(f"{layout}_manager_block_of_three", [1, 3], ratio=3, layout=layout)
    yield _case("sixteen_bit", [1, 2], dtype=torch.bfloat16)
    yield _case("eight_bit", [1, 2], dtype=torch.uint8)
    yield _case("layers_that_share_a_cache", [1], layers=3, shared=True)
    yield _case("a_block_given_twice", [2, 2, 0])
    yield _case("no_block", [])
    yield _case("page_of_odd_length", [1], kernel=3)
    if PIN < (0, 27):
        yield _case("more_ids_than_the_buffer_holds", [1, 4, 0], capacity=2)
    if DIFFERENT_PAGES:
        yield _case("pages_of_different_size", [1, 4, 0], wide=True)
        yield _case("pages_of_different_size_of_three_blocks", [3, 1], ratio=3, layout="blocks_first", wide=True)
    if PACKED:
        yield _case("caches_side_by_side", [4, 0], layout="packed", layers=3)
        yield _case("caches_side_by_side_of_three_blocks", [4, 2], layout="packed", layers=2, ratio=3)
    yield _case("no_attention_layer", [1], layers=0)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (40,),
        lambda: original(MODULE, "KVBlockZeroer.zero_block_ids"),
        "worker_utils:zero_block_ids",
        cases,
        sample,
    ),
)
