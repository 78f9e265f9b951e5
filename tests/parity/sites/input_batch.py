# SPDX-License-Identifier: Apache-2.0
"""Sites 5 to 11: the inputs of a step and the request state after it.

State has MAX rows of which a batch uses some, in any order. Inputs obey upstream's contract, since its kernels check
nothing: what the fork does where they would leave their buffers is in test_bounds.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from harness import N_RANDOM, PIN, Case, Site, State, cumulative, fresh, ints, original, poison

MODULE = "vllm.v1.worker.gpu.input_batch"
MAX, VOCAB = 7, 50
IDX = [4, 0, 6, 2]
LOOKAHEAD = PIN >= (0, 27)


def _idx(rng: random.Random, n: int) -> torch.Tensor:
    return torch.tensor(rng.sample(range(MAX), n), dtype=rng.choice([torch.int32, torch.int64]))


def _state(rows: Sequence[int] | torch.Tensor, values: Sequence[int]) -> torch.Tensor:
    """[MAX] int32 with `values` at `rows`, improbable elsewhere."""
    state = poison(MAX)
    for row, value in zip(rows, values, strict=True):
        state[int(row)] = value
    return state


def _table(columns: int, gap: int = 0) -> torch.Tensor:
    """[MAX, columns] int32 of different tokens; with a gap its rows are not adjacent."""
    wide = torch.arange(MAX * (columns + gap), dtype=torch.int32).view(MAX, columns + gap) + 1000
    return wide[:, :columns]


def _rows(n: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(IDX[:n], dtype=dtype)


# Site 5


def _prefill(
    name: str,
    rows: Sequence[tuple[int, int, int]],
    idx: torch.Tensor | None = None,
    *,
    columns: int = 40,
    gap: int = 0,
    qsl_pad: int = 0,
    stale: int = 5,
    ahead: int = 1,
) -> Case:
    """rows: (tokens in this step, computed, prefill length). ahead: tokens to remember, more than one since 0.27.1."""
    idx = _rows(len(rows)) if idx is None else idx
    lens = [r[0] for r in rows]
    return Case(
        name,
        fresh(
            poison(sum(lens) + stale),
            poison(ahead, MAX) if LOOKAHEAD else poison(MAX),
            idx,
            cumulative(lens, len(lens) + 1 + qsl_pad),
            _table(columns, gap),
            _state(idx, [r[2] for r in rows]),
            _state(idx, [r[1] for r in rows]),
        ),
    )


def prefill_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = []
    for _ in range(rng.randrange(0, MAX + 1)):
        known, n = rng.randrange(0, 30), rng.choice([0, 1, 1, 3, 8])
        rows.append((n, rng.choice([0, known, rng.randrange(0, 32)]), known))
    return _prefill(
        name, rows, _idx(rng, len(rows)), gap=rng.choice([0, 3]), qsl_pad=rng.randrange(3), stale=rng.randrange(9),
        ahead=rng.choice([1, 1, 4]) if LOOKAHEAD else 1,
    )  # fmt: skip


def prefill_cases(rng: random.Random) -> Iterator[Case]:
    mixed = [(1, 12, 12), (5, 0, 20), (4, 6, 10), (1, 30, 12)]
    yield _prefill("decode_rows_skipped_chunk_remembered_end_not", mixed)
    yield _prefill("int64_rows", mixed, _rows(4, torch.int64))
    yield _prefill("query_start_loc_padded", mixed, qsl_pad=3)
    yield _prefill("rows_apart_in_memory", mixed, gap=4)
    yield _prefill("draft_slots_past_the_prefill", [(6, 8, 10), (1, 3, 9)])
    yield _prefill("a_prefilling_row_of_no_tokens", [(0, 3, 9), (2, 0, 9)])
    yield _prefill("only_rows_of_no_tokens", [(0, 3, 9), (0, 9, 9)], stale=0)
    yield _prefill("last_token_but_one", [(4, 5, 10), (5, 5, 10)])
    yield _prefill("a_row_at_max_model_len", [(10, 30, 40), (9, 30, 40)], torch.tensor([MAX - 1, 1]))
    yield _prefill("no_row_prefills", [(1, 12, 12), (1, 30, 12)])
    yield _prefill("no_row_left_stale", mixed, stale=0)
    yield _prefill("longer_than_a_triton_block", [(1, 3, 2), (1100, 2, 1200)], columns=1200)
    yield _prefill("empty_batch", [])
    if LOOKAHEAD:
        yield _prefill("three_tokens_ahead", mixed, ahead=3)
        yield _prefill("ahead_past_the_prefill_and_the_row", [(9, 30, 40), (4, 5, 10), (3, 0, 9)], ahead=5)
    for i in range(N_RANDOM):
        yield prefill_sample(rng, f"random{i}")


# Site 6


def _positions(
    name: str,
    rows: Sequence[tuple[int, int]],
    idx: torch.Tensor | None = None,
    *,
    qsl_pad: int = 0,
    stale: int = 5,
    pad_rows: int = 3,
) -> Case:
    """rows: (tokens in this step, computed)."""
    idx = _rows(len(rows)) if idx is None else idx
    lens = [r[0] for r in rows]
    return Case(
        name,
        fresh(
            idx,
            cumulative(lens, len(lens) + 1 + qsl_pad),
            _state(idx, [r[1] for r in rows]),
            poison(sum(lens) + stale, dtype=torch.int64),
            poison(len(rows) + pad_rows),
        ),
    )


def positions_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = [(rng.choice([0, 1, 1, 4, 9]), rng.randrange(0, 10**6)) for _ in range(rng.randrange(0, MAX + 1))]
    return _positions(
        name,
        rows,
        _idx(rng, len(rows)),
        qsl_pad=rng.randrange(3),
        stale=rng.randrange(9),
        pad_rows=rng.randrange(3),
    )


def positions_cases(rng: random.Random) -> Iterator[Case]:
    rows = [(1, 12), (5, 0), (0, 7), (3, 100)]
    yield _positions("ragged_with_a_row_of_none", rows)
    yield _positions("int64_rows", rows, _rows(4, torch.int64))
    yield _positions("query_start_loc_padded", rows, qsl_pad=3)
    yield _positions("no_padding_row_no_stale_token", rows, stale=0, pad_rows=0)
    yield _positions("only_rows_of_no_tokens", [(0, 12), (0, 5)], stale=0)
    yield _positions("lengths_zeroed_over_a_triton_block", rows, pad_rows=1500)
    yield _positions("longer_than_a_triton_block", [(1, 3), (1100, 5)])
    yield _positions("empty_batch", [])
    for i in range(N_RANDOM):
        yield positions_sample(rng, f"random{i}")


# Site 7


def _combine(
    name: str,
    rows: Sequence[tuple[int, int, int, int]],
    idx: torch.Tensor | None = None,
    *,
    drafts: int = 3,
    new: int = 1,
    big: bool = False,
    pad: int = 0,
    keyword: bool = False,
) -> Case:
    """rows: (tokens in this step, logits, sequence length, prefill length)."""
    n = len(rows)
    idx = _rows(n) if idx is None else idx
    logits = [r[1] for r in rows]
    sampled = torch.arange(MAX, dtype=torch.int64).view(MAX, 1) + 500
    draft_tokens = torch.arange(MAX * drafts, dtype=torch.int64).view(MAX, drafts) + 700
    if big:
        sampled, draft_tokens = sampled + 2**33 + 2**31, draft_tokens - 2**40 - 2**31
    args = (
        poison(sum(r[0] for r in rows) + 4),
        idx,
        sampled,
        cumulative((r[0] for r in rows), n + 1 + pad),
        torch.tensor([r[2] for r in rows] + [0] * pad, dtype=torch.int32),
        _state(idx, [r[3] for r in rows]),
        draft_tokens,
        cumulative(logits),
        sum(logits),
    )
    make = fresh(*args, num_new_sampled_tokens=new) if keyword or new != 1 else fresh(*args)
    return Case(name, make)


def combine_sample(rng: random.Random, name: str = "drawn") -> Case:
    new = rng.choice([0, 1, 1, 1])
    drafts = rng.randrange(1, 5)
    rows = []
    for _ in range(rng.randrange(0, MAX + 1)):
        known = rng.randrange(0, 20)
        logits = new + rng.choice([0, 0, drafts, rng.randrange(drafts + 1)])
        n = logits + rng.choice([0, 0, 2])
        rows.append((n, logits, max(n, known + rng.randrange(-5, 6)), known))
    return _combine(
        name, rows, _idx(rng, len(rows)), drafts=drafts, new=new, big=rng.random() < 0.2, pad=rng.randrange(3)
    )


def combine_cases(rng: random.Random) -> Iterator[Case]:
    plain = [(1, 1, 13, 12), (1, 1, 40, 5), (1, 1, 6, 5), (1, 1, 9, 8)]
    drafted = [(4, 4, 20, 5), (1, 1, 6, 5), (3, 3, 30, 8), (2, 2, 9, 2)]
    mixed = [(4, 4, 20, 5), (6, 1, 6, 6), (6, 1, 6, 9), (7, 3, 30, 8)]
    for dtype in (torch.int32, torch.int64):
        kind = str(dtype)[6:]
        yield _combine(f"B2_two_dimensional_last_sampled_{kind}", plain, _rows(4, dtype))
        yield _combine(f"B2_with_drafts_{kind}", drafted, _rows(4, dtype))
    yield _combine("B3_no_draft_columns", plain, drafts=0)
    yield _combine("prefill_rows_among_drafts", mixed)
    yield _combine("prefill_rows_without_drafts", [(6, 1, 6, 6), (6, 1, 6, 9), (1, 1, 7, 6), (3, 1, 7, 6)])
    yield _combine("logits_begin_inside_the_prefill", [(4, 4, 12, 10), (4, 4, 13, 10), (4, 4, 14, 10)])
    yield _combine("only_the_last_draft_is_generated", [(4, 4, 11, 10), (4, 4, 10, 10)])
    yield _combine("B3_diffusion_samples_nothing_new", [(3, 3, 9, 2), (2, 0, 9, 2), (3, 3, 3, 3)], new=0)
    yield _combine("diffusion_one_logit_a_row", [(1, 1, 9, 2), (1, 1, 9, 2)], new=0)
    yield _combine("no_logits_at_all", [(2, 0, 9, 2)], new=0)
    yield _combine("tokens_cut_to_32_bits", drafted, big=True)
    yield _combine("tokens_cut_to_32_bits_no_drafts", plain, big=True)
    yield _combine("padded_offsets", drafted, pad=3)
    yield _combine("padded_offsets_no_drafts", plain, pad=2)
    yield _combine("new_tokens_by_keyword", drafted, keyword=True)
    yield _combine("single_row", [(1, 1, 13, 12)])
    yield _combine("empty_batch", [])
    yield Case(
        "more_than_one_new_token_refused",
        fresh(*_combine("", plain).make()[0], num_new_sampled_tokens=2),
        raises=AssertionError,
    )
    for i in range(N_RANDOM):
        yield combine_sample(rng, f"random{i}")


# Site 8


def _sampled(
    name: str,
    rows: Sequence[tuple[int, int, int, int]],
    idx: torch.Tensor | None = None,
    *,
    pad: int = 0,
    pad_sampled: int = 0,
) -> Case:
    """rows: (sampled, logits, sequence length, prefill length)."""
    n = len(rows)
    idx = _rows(n) if idx is None else idx

    def uninitialised(state: State) -> dict[str, torch.Tensor]:
        return {"ret[1]": torch.arange(n + pad_sampled) >= n}

    num_sampled = poison(n + pad_sampled)
    num_sampled[:n] = torch.tensor([r[0] for r in rows], dtype=torch.int32)
    return Case(
        name,
        fresh(
            num_sampled,
            torch.tensor([r[2] for r in rows] + [0] * pad, dtype=torch.int32),
            cumulative((r[1] for r in rows), n + 1 + pad),
            idx,
            _state(idx, [r[3] for r in rows]),
        ),
        ignore=uninitialised,
    )


def sampled_sample(rng: random.Random, name: str = "drawn") -> Case:
    rows = []
    for _ in range(rng.randrange(0, MAX + 1)):
        logits, known = rng.randrange(0, 6), rng.randrange(0, 9)
        rows.append((rng.randrange(0, logits + 1), logits, known + rng.randrange(-1, 2), known))
    return _sampled(name, rows, _idx(rng, len(rows)), pad=rng.randrange(3), pad_sampled=rng.randrange(2))


def sampled_cases(rng: random.Random) -> Iterator[Case]:
    rows = [(1, 1, 9, 9), (2, 4, 30, 9), (1, 1, 8, 9), (0, 1, 9, 0)]
    yield _sampled("inside_the_prefill_is_strictly_shorter", rows)
    yield _sampled("int64_rows", rows, _rows(4, torch.int64))
    yield _sampled("B6_padded_offsets", rows, pad=3)
    yield _sampled("longer_num_sampled", rows, pad_sampled=2)
    yield _sampled("empty_batch", [])
    for i in range(N_RANDOM):
        yield sampled_sample(rng, f"random{i}")


# Site 9


def _update(
    name: str,
    rows: Sequence[tuple[int, int, Sequence[int]]],
    idx: torch.Tensor | Sequence[int] | None = None,
    *,
    width: int = 4,
    rejected: Sequence[int] | None = None,
    lens: Sequence[int] | None = None,
    bins: bool = True,
    gap: int = 0,
    qsl_pad: int = 0,
    columns: int = 30,
) -> Case:
    """rows: (total length, computed, sampled tokens). lens: tokens of the step, None: no query_start_loc."""
    n = len(rows)
    idx = _rows(n) if idx is None else torch.as_tensor(idx)
    sampled = poison(n, width, dtype=torch.int64)
    for i, row in enumerate(rows):
        sampled[i, : len(row[2])] = torch.tensor(row[2], dtype=torch.int64)
    total, computed = poison(MAX), poison(MAX)
    for request, row in zip(idx.tolist(), rows, strict=True):
        if request >= 0:
            total[request], computed[request] = row[0], row[1]
    counts = torch.arange(MAX * (VOCAB + gap), dtype=torch.int32).view(MAX, VOCAB + gap)[:, :VOCAB]
    return Case(
        name,
        fresh(
            idx,
            computed,
            poison(MAX, 1, dtype=torch.int64),
            counts if bins else None,
            sampled,
            torch.tensor([len(r[2]) for r in rows], dtype=torch.int32),
            torch.tensor(rejected or [0] * n, dtype=torch.int32),
            None if lens is None else cumulative(lens, n + 1 + qsl_pad),
            _table(columns, gap),
            total,
        ),
    )


def update_sample(rng: random.Random, name: str = "drawn") -> Case:
    n, width = rng.randrange(0, MAX + 1), rng.choice([1, 1, 2, 5])
    columns = 30
    rows, lens, rejected = [], [], []
    for _ in range(n):
        k = rng.randrange(0, width + 1)
        # A small vocabulary repeats tokens.
        rows.append((rng.randrange(0, columns - k + 1), rng.randrange(0, 99), ints(rng, k, low=0, high=6).tolist()))
        lens.append(rng.randrange(0, 9))
        rejected.append(rng.randrange(0, lens[-1] + 1))
    idx = _idx(rng, n)
    if rng.random() < 0.4:
        idx[ints(rng, n, low=0, high=3) == 0] = -1
    return _update(
        name,
        rows,
        idx,
        width=width,
        rejected=rejected,
        lens=rng.choice([None, lens, lens]),
        bins=rng.random() < 0.7,
        gap=rng.choice([0, 3]),
        qsl_pad=rng.randrange(3),
        columns=columns,
    )


def update_cases(rng: random.Random) -> Iterator[Case]:
    one = [(12, 12, [5]), (20, 20, [7]), (9, 9, [5]), (3, 3, [0])]
    ragged = [(12, 10, [5, 6, 7]), (20, 20, []), (9, 9, [5]), (3, 3, [1, 2, 3, 4])]
    four = [4, 4, 1, 4]
    for dtype in (torch.int32, torch.int64):
        kind = str(dtype)[6:]
        yield _update(f"B2_decode_{kind}", one, _rows(4, dtype), width=1, lens=[1, 1, 1, 1])
        yield _update(f"ragged_drafts_{kind}", ragged, _rows(4, dtype), rejected=[1, 4, 0, 0], lens=four)
    yield _update(
        "B8_tokens_repeated_in_a_row", [(2, 2, [7, 7, 7, 7]), (5, 5, [7, 9, 7]), (1, 1, [9, 9])], lens=[4, 4, 4]
    )
    yield _update("B8_no_bin_counts", ragged, bins=False, lens=four)
    yield _update("B7_skipped_rows_beside_row_0", ragged, [-1, 0, -1, 3], lens=four, rejected=[2, 1, 3, 0])
    yield _update("B7_skipped_rows_without_row_0", ragged, [-1, 5, 2, -1], lens=four)
    yield _update("all_rows_skipped", ragged, [-1, -1, -1, -1], lens=four)
    yield _update("no_query_start_loc", ragged, rejected=[1, 0, 0, 2])
    yield _update("no_query_start_loc_skipped_rows_no_bins", ragged, [-1, 0, 6, -1], bins=False)
    yield _update("B6_query_start_loc_padded", ragged, lens=four, qsl_pad=3)
    yield _update("B9_rows_apart_in_memory", ragged, lens=four, gap=5)
    yield _update("nothing_sampled", [(12, 10, []), (4, 4, [])], lens=[5, 2])
    yield _update("everything_rejected", [(12, 10, []), (4, 4, [])], lens=[5, 2], rejected=[5, 2])
    yield _update("a_row_reaches_max_model_len", [(26, 9, [1, 2, 3, 4]), (29, 9, [5])], [MAX - 1, 0], lens=[4, 1])
    yield _update("last_token_is_minus_one", [(6, 9, [1, 2]), (7, 9, [3])], lens=[2, 1])
    yield _update("empty_batch", [], lens=[])
    for i in range(N_RANDOM):
        yield update_sample(rng, f"random{i}")


# Site 10


def _computed(name: str, lens: Sequence[int], idx: torch.Tensor | None = None, *, qsl_pad: int = 0) -> Case:
    idx = _rows(len(lens)) if idx is None else idx
    return Case(name, fresh(idx, poison(MAX), cumulative(lens, len(lens) + 1 + qsl_pad)))


def computed_sample(rng: random.Random, name: str = "drawn") -> Case:
    lens = [rng.randrange(0, 9) for _ in range(rng.randrange(0, MAX + 1))]
    return _computed(name, lens, _idx(rng, len(lens)), qsl_pad=rng.randrange(3))


def computed_cases(rng: random.Random) -> Iterator[Case]:
    yield _computed("ragged", [3, 0, 1, 8])
    yield _computed("int64_rows", [3, 0, 1, 8], _rows(4, torch.int64))
    yield _computed("B6_query_start_loc_padded", [3, 0, 1], qsl_pad=4)
    yield _computed("empty_batch", [])
    for i in range(N_RANDOM):
        yield computed_sample(rng, f"random{i}")


# Site 11


def _expand(name: str, logits: Sequence[int], idx: torch.Tensor | None = None, *, cu_pad: int = 0) -> Case:
    idx = _rows(len(logits)) if idx is None else idx
    cu = cumulative(logits, len(logits) + 1 + cu_pad)
    return Case(name, fresh(idx, sum(logits), cu, max([*logits, 1])))


def expand_sample(rng: random.Random, name: str = "drawn") -> Case:
    logits = [rng.randrange(0, 6) for _ in range(rng.randrange(0, MAX + 1))]
    return _expand(name, logits, _idx(rng, len(logits)), cu_pad=rng.randrange(3))


def expand_cases(rng: random.Random) -> Iterator[Case]:
    yield _expand("ragged", [4, 1, 3, 1])
    yield _expand("int64_rows", [4, 1, 3, 1], _rows(4, torch.int64))
    yield _expand("a_row_of_no_logits", [0, 2, 0, 3])
    yield _expand("negative_rows_are_copied", [2, 2, 1], torch.tensor([3, -1, 0], dtype=torch.int32))
    yield _expand("one_logit_a_row", [1, 1, 1, 1])
    yield _expand("padded_offsets", [4, 1, 3], cu_pad=2)
    yield _expand("no_logits_at_all", [0, 0])
    yield _expand("empty_batch", [])
    for i in range(N_RANDOM):
        yield expand_sample(rng, f"random{i}")


SITES = (
    Site(
        (5,),
        lambda: original(MODULE, "prepare_prefill_inputs"),
        "input_batch:prepare_prefill_inputs",
        prefill_cases,
        prefill_sample,
    ),
    Site(
        (6,),
        lambda: original(MODULE, "prepare_pos_seq_lens"),
        "input_batch:prepare_pos_seq_lens",
        positions_cases,
        positions_sample,
    ),
    Site(
        (7,),
        lambda: original(MODULE, "combine_sampled_and_draft_tokens"),
        "input_batch:combine_sampled_and_draft_tokens",
        combine_cases,
        combine_sample,
    ),
    Site(
        (8,),
        lambda: original(MODULE, "get_num_sampled_and_rejected"),
        "input_batch:get_num_sampled_and_rejected",
        sampled_cases,
        sampled_sample,
    ),
    Site(
        (9,),
        lambda: original(MODULE, "post_update"),
        "input_batch:post_update",
        update_cases,
        update_sample,
    ),
    Site(
        (9,),
        lambda: original(MODULE, "post_update"),
        "input_batch:post_update_compact",
        update_cases,
        update_sample,
        allow={"nonzero": "the one documented wait of this form, KUNLUN_POSTUPD3=0"},
        backends=("torch",),
    ),
    Site(
        (10,),
        lambda: original(MODULE, "post_update_num_computed_tokens"),
        "input_batch:post_update_num_computed_tokens",
        computed_cases,
        computed_sample,
    ),
    Site(
        (11,),
        lambda: original(MODULE, "expand_idx_mapping"),
        "input_batch:expand_idx_mapping",
        expand_cases,
        expand_sample,
    ),
)
