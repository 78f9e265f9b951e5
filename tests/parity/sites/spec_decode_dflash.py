# SPDX-License-Identifier: Apache-2.0
"""Site 30: draft inputs of dflash (1 + N queries) and dspark (N queries, sampled from the anchor on)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, PIN, Case, Site, floats, fresh, ints, original, poison

from sites.spec_decode_autoregressive import STATES, batch, buffers, states

MODULE = "vllm.v1.worker.gpu.spec_decode.dflash.speculator"


def _case(
    rng: random.Random,
    name: str,
    lens: Sequence[int],
    rejected: Sequence[int],
    sampled: Sequence[int],
    anchor: bool = True,
    steps: int = 4,
    pad: int = 2,
    block_size: int = 16,
    blocks: int = 64,
    max_model_len: int = 1024,
    idx_dtype: torch.dtype = torch.int32,
    high: int = 900,
    flat: bool = False,
    group: int = 0,
    starts: Sequence[int] | None = None,
    null: float = 0.1,
) -> Case:
    """null: how many entries of the block table are the null block, which has no slots since 0.28.0."""
    n, tokens = len(lens), sum(lens)
    max_num_reqs = n + pad
    queries = steps if anchor else steps + 1
    max_num_tokens = max(tokens + 3, max_num_reqs * queries) + 6
    slot_mappings = poison(3, max_num_tokens, dtype=torch.int64)
    contexts = poison(2, max_num_tokens, dtype=torch.int64)
    table = poison(max_num_reqs, blocks)
    table[:n] = ints(rng, n, blocks, low=0, high=50000)
    if PIN >= (0, 28):
        gone = floats(rng, n, blocks, scale=1.0).abs() < null
        table[:n].masked_fill_(gone, 0)
    last, following = states(rng, flat)
    # Since 0.27.1 temperatures and seeds of the batch are copied, too: where to, and where from.
    target: tuple[torch.Tensor, ...] = ()
    source: tuple[torch.Tensor, ...] = ()
    if PIN >= (0, 27):
        target = (poison(STATES, dtype=torch.float32), poison(STATES, dtype=torch.int64))
        source = (floats(rng, STATES), ints(rng, STATES, low=-(2**62), high=2**62, dtype=torch.int64))
    args = (
        buffers(max_num_reqs, max_num_tokens),
        slot_mappings[group],
        poison(max_num_tokens, dtype=torch.int64),
        contexts[group % 2],
        poison(max_num_reqs * steps, dtype=torch.int64),
        poison(max_num_reqs * steps, dtype=torch.int64),
        poison(max_num_reqs * steps),
        *target,
        batch(rng, lens, 1, 3, idx_dtype, high, starts),
        torch.tensor(sampled, dtype=torch.int32),
        torch.tensor(rejected, dtype=torch.int32),
        last,
        following,
        *source,
        table,
        block_size,
        77777,
        queries,
        steps,
        max_num_reqs,
        max_num_tokens,
        max_model_len,
    )
    if not anchor and rng.random() < 0.5:
        return Case(name, fresh(*args))
    return Case(name, fresh(*args, sample_from_anchor=anchor))


def sample(rng: random.Random, name: str = "drawn") -> Case:
    n = rng.randrange(1, 6)
    lens = [rng.choice([1, 2, 5, 8, 33]) for _ in range(n)]
    return _case(
        rng,
        name,
        lens,
        [rng.randrange(0, length) for length in lens],
        [rng.randrange(0, 3) for _ in lens],
        anchor=rng.random() < 0.5,
        steps=rng.randrange(1, 8),
        pad=rng.randrange(0, 4),
        block_size=rng.choice([16, 32, 48]),
        idx_dtype=rng.choice([torch.int32, torch.int64]),
        flat=rng.random() < 0.3,
        group=rng.randrange(2),
    )


def cases(rng: random.Random) -> Iterator[Case]:
    for anchor in (True, False):
        layout = "anchor" if anchor else "bonus"
        yield _case(rng, f"B13_{layout}_ragged", [5, 1, 5, 3], [2, 0, 4, 0], [3, 1, 1, 3], anchor)
        yield _case(rng, f"{layout}_second_kv_group", [5, 2], [1, 0], [4, 1], anchor, group=1)
        yield _case(rng, f"{layout}_one_step_no_padding", [2, 2, 1], [1, 0, 0], [1, 1, 1], anchor, steps=1, pad=0)
        yield _case(
            rng,
            f"{layout}_clamped_at_max_model_len",
            [5, 5, 5],
            [0, 1, 4],
            [5, 4, 1],
            anchor,
            max_model_len=60,
            starts=[55, 54, 55],
        )
    yield _case(rng, "B2_two_dimensional_last_sampled", [3, 3, 3], [0, 1, 2], [3, 2, 1])
    yield _case(rng, "chunked_prefill_splices_the_next_prompt_token", [40, 1, 7], [0, 0, 0], [0, 1, 0])
    yield _case(rng, "context_over_a_block_of_256", [300, 5, 513], [3, 0, 0], [1, 5, 0])
    yield _case(rng, "past_the_block_table_reads_its_last_block", [6, 4], [1, 0], [3, 2], blocks=2, high=40)
    yield _case(rng, "int64_idx_mapping", [4, 4], [1, 3], [3, 1], idx_dtype=torch.int64)
    # The same shapes, for a replay of the one on the other.
    yield _case(rng, "int64_idx_mapping_again", [4, 4], [0, 1], [4, 3], idx_dtype=torch.int64)
    yield _case(rng, "all_context_rejected_in_a_later_row", [4, 3], [0, 3], [4, 1])
    yield _case(rng, "padding_beyond_256_rows", [2, 3], [0, 1], [2, 2], pad=300)
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


SITES = (
    Site(
        (30,),
        lambda: original(MODULE, "prepare_dflash_inputs"),
        "spec_decode_dflash:prepare_dflash_inputs",
        cases,
        sample,
    ),
)
