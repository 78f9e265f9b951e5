# SPDX-License-Identifier: Apache-2.0
"""Sites 32-37: verification of draft tokens.

No tolerance: every accepted and every drawn token has to be upstream's, for all seeds. Only what lies behind a
request's count is not compared; upstream leaves it uninitialised.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from harness import N_RANDOM, PIN, Case, Site, State, cumulative, floats, ints, kunlun_package, original

MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
STATES = 7
HARD_SEEDS = (0, -1, 2**63 - 1, -(2**63), 1 << 32, 0xFFFFFFFF)


def _behind_the_count(state: State) -> dict[str, torch.Tensor]:
    sampled, num_sampled = state["ret[0]"], state["ret[1]"]
    return {"ret[0]": torch.arange(sampled.shape[1]) >= num_sampled.unsqueeze(1)}


def _pieces(small: bool) -> None:
    """Let the fork walk the vocabulary in several pieces although it is small here."""
    module: Any = importlib.import_module(f"{kunlun_package()}.verification")
    vocab: Any = importlib.import_module(f"{kunlun_package()}.vocab")
    module.STATISTICS_PIECE = 1 if small else 1 << 22
    module.rng_elements = (lambda device: 1) if small else vocab.rng_elements


def make_case(
    rng: random.Random,
    name: str,
    drafts: Sequence[int],
    steps: int = 4,
    vocab: int = 40,
    draft_vocab: int | None = 40,
    temperatures: Sequence[float] = (1.0,),
    seeds: Sequence[int] | None = None,
    mode: str = "standard",
    agree: float | Sequence[float] = 0.6,
    scale: float = 2.0,
    invalid: Sequence[int] = (),
    rates: Sequence[float] | None = None,
    fp64: bool = False,
    idx_dtype: torch.dtype = torch.int32,
    token_dtype: torch.dtype = torch.int32,
    logits_dtype: torch.dtype = torch.float32,
    pos_high: int = 5000,
    ties: bool = False,
    masked: float = 0.0,
    dead_columns: int = 0,
    dead_rows: Sequence[int] = (),
    behind_rows: float = 99.0,
    small_pieces: bool = False,
) -> Case:
    """drafts: number of draft tokens a request. draft_vocab None: the draft was certain of its tokens.

    agree: how close the draft's logits are to the target's (1: equal), for all steps or each. invalid: rows of logits
    behind which the draft token is -1; token 0 is then all but certain, so that taking -1 for it shows.
    masked: how many target logits are -inf; dead_columns: so many at the start of every row; dead_rows: all of a row.
    behind_rows: what lies in memory between two rows of logits.
    """
    n, rows = len(drafts), sum(d + 1 for d in drafts)
    slots = torch.tensor(rng.sample(range(STATES), n), dtype=idx_dtype)
    cu_num_logits = cumulative([d + 1 for d in drafts])
    local = torch.tensor([i for d in drafts for i in range(d + 1)], dtype=torch.int32)
    expanded = torch.tensor([int(s) for s, d in zip(slots, drafts, strict=True) for _ in range(d + 1)], dtype=idx_dtype)
    target = floats(rng, rows, vocab + 3, scale=scale)[:, :vocab]
    if ties:
        target = (target * 2).round() / 2
    if masked:
        gone = floats(rng, rows, vocab) > 3.0 * (1 - 2 * masked)
        target = target.masked_fill(gone, -torch.inf)
    target[list(invalid), 0] = 30.0
    target[:, :dead_columns] = -torch.inf
    target[list(dead_rows)] = -torch.inf
    tokens = torch.full((rows,), 0, dtype=token_dtype)
    draft_logits = None
    width = vocab if draft_vocab is None else draft_vocab
    if draft_vocab is not None:
        draft_logits = floats(rng, STATES, steps, draft_vocab, scale=scale)
    row = 0
    for request, count in enumerate(drafts):
        for step in range(count + 1):
            if step == count:
                row += 1
                break
            common = min(width, vocab)
            share = agree if isinstance(agree, float) else agree[step]
            mine = target[row, :common].clamp(min=-20.0)
            own = floats(rng, width, scale=scale)
            own[:common] = share * mine + (1 - share) * own[:common]
            if draft_logits is not None:
                draft_logits[int(slots[request]), step] = own
            noise = floats(rng, width, scale=1.0)
            tokens[row + 1] = int((own + noise * (1 - share))[:common].argmax())
            row += 1
    for at in invalid:
        tokens[at + 1] = -1
    temperature = torch.full((STATES,), 0.7)
    seed = ints(rng, STATES, low=-(2**63), high=2**63, dtype=torch.int64)
    for request in range(n):
        slot = int(slots[request])
        temperature[slot] = temperatures[request % len(temperatures)]
        if seeds is not None:
            seed[slot] = seeds[request % len(seeds)]
    pos = ints(rng, rows, low=0, high=pos_high, dtype=torch.int64)
    conditional = None
    if mode == "synthetic":
        conditional = torch.tensor(rates or [rng.choice([0.0, 0.5, 0.8, 1.0]) for _ in range(steps)])
    args = (
        target.to(logits_dtype),
        draft_logits,
        tokens,
        cu_num_logits,
        pos,
        slots,
        expanded,
        local,
        temperature,
        seed,
        steps,
        conditional,
    )
    kwargs: dict[str, Any] = {"use_fp64": fp64, "use_block_verification": mode == "block"}
    if not fp64 and mode != "block" and rng.random() < 0.5:
        kwargs = {}

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        _pieces(small_pieces)
        # A view of wider rows, as a padded vocabulary leaves it.
        logits = torch.full((rows, vocab + 3), behind_rows, dtype=logits_dtype)[:, :vocab]
        logits.copy_(args[0])
        rest = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args[1:])
        return (logits, *rest), dict(kwargs)

    return Case(name, make, ignore=_behind_the_count)


def sample(rng: random.Random, name: str = "drawn") -> Case:
    steps = rng.randrange(1, 6)
    drafts = [rng.randrange(0, steps + 1) for _ in range(rng.randrange(1, 6))]
    return make_case(
        rng,
        name,
        drafts,
        steps,
        vocab=rng.choice([17, 40, 65]),
        draft_vocab=rng.choice([None, 17, 40]),
        temperatures=[rng.choice([0.0, 0.6, 1.0]) for _ in drafts],
        seeds=rng.choice([None, HARD_SEEDS]),
        mode=rng.choice(["standard", "standard", "synthetic", "block", "block"]),
        agree=rng.choice([0.0, 0.6, 0.9, 1.0]),
        fp64=rng.random() < 0.3,
        idx_dtype=rng.choice([torch.int32, torch.int64]),
        token_dtype=rng.choice([torch.int32, torch.int64]),
        ties=rng.random() < 0.3,
        pos_high=rng.choice([2000, 2**40]),
    )


def cases(rng: random.Random) -> Iterator[Case]:
    mixed = (0.0, 1.0, 0.6)
    for mode in ("standard", "synthetic", "block"):
        for draft_vocab in (None, 40):
            kind = f"B12_{mode}_{'one_hot' if draft_vocab is None else 'draft_logits'}"
            yield make_case(
                rng, f"{kind}_greedy_rows", [4, 2, 0, 3], draft_vocab=draft_vocab, temperatures=(0.0,), mode=mode
            )
            yield make_case(
                rng, f"{kind}_mixed_ragged", [3, 0, 4, 1, 2], draft_vocab=draft_vocab, temperatures=mixed, mode=mode
            )
            yield make_case(
                rng, f"{kind}_fp64", [4, 4, 1], draft_vocab=draft_vocab, temperatures=mixed, mode=mode, fp64=True
            )
            yield make_case(rng, f"{kind}_draft_agrees", [4, 4, 4], draft_vocab=draft_vocab, mode=mode, agree=1.0)
            yield make_case(
                rng, f"{kind}_draft_is_unrelated", [4, 4, 4, 4, 4], draft_vocab=draft_vocab, mode=mode, agree=0.0
            )
    yield make_case(rng, "seeds_at_the_edges", [3] * 6, seeds=HARD_SEEDS)
    yield make_case(rng, "positions_over_2_to_32", [3, 3, 3], pos_high=2**62, temperatures=mixed)
    yield make_case(rng, "minus_one_is_never_accepted", [4, 4, 3, 2], invalid=(0, 7, 12), temperatures=mixed)
    yield make_case(
        rng, "minus_one_one_hot", [4, 4, 3, 2], invalid=(0, 7, 12), temperatures=mixed, draft_vocab=None, agree=1.0
    )
    yield make_case(
        rng,
        "minus_one_synthetic",
        [4, 4, 3],
        invalid=(0, 6, 11),
        temperatures=mixed,
        mode="synthetic",
        rates=[1.0] * 4,
    )
    # Upstream reads the logit in front of the row for the token -1 here; nothing is drawn from -inf.
    for draft_vocab in (None, 40):
        yield make_case(
            rng,
            f"minus_one_block_{'one_hot' if draft_vocab is None else 'draft_logits'}",
            [4, 4, 4, 3],
            invalid=(2, 6, 13),
            draft_vocab=draft_vocab,
            temperatures=(1.0, 0.7),
            mode="block",
            agree=1.0,
            behind_rows=-torch.inf,
        )
    if PIN >= (0, 28):
        for mode in ("standard", "block"):
            # What is drawn in the place of -1, and before tokens that would have been accepted, is the target's.
            yield make_case(
                rng, f"minus_one_draws_from_the_target_{mode}", [4] * 7, invalid=range(0, 35, 5), mode=mode, agree=0.0,
                temperatures=(0.3, 2.0), logits_dtype=torch.bfloat16,
            )  # fmt: skip
            yield make_case(
                rng, f"minus_one_ends_the_drafts_{mode}", [4] * 7, invalid=range(1, 35, 5), mode=mode, agree=1.0,
                temperatures=(0.3, 2.0),
            )  # fmt: skip
    yield make_case(rng, "B12_draft_vocabulary_is_smaller", [4, 3, 2, 4], vocab=60, draft_vocab=44, temperatures=mixed)
    yield make_case(
        rng,
        "B12_draft_vocabulary_is_smaller_block",
        [4, 3, 2],
        vocab=60,
        draft_vocab=44,
        mode="block",
        temperatures=mixed,
    )
    yield make_case(rng, "B12_draft_vocabulary_is_larger", [4, 3, 2], vocab=40, draft_vocab=51, temperatures=mixed)
    yield make_case(rng, "B11_ties_take_the_lowest_token", [4, 4, 2], ties=True, temperatures=(0.0,), scale=0.4)
    yield make_case(rng, "masked_logits", [4, 4, 3], masked=0.6, temperatures=mixed)
    yield make_case(rng, "masked_logits_one_hot", [4, 4, 3], masked=0.6, temperatures=mixed, draft_vocab=None)
    for agree, scale, draft_vocab in (
        (0.0, 0.7, 40),
        (0.3, 0.7, 40),
        (0.3, 1.0, 40),
        (0.5, 2.0, 40),
        (0.5, 1.0, None),
        (0.8, 3.0, None),
    ):
        yield make_case(
            rng,
            f"block_sweep_{agree}_{scale}_{'one_hot' if draft_vocab is None else 'draft_logits'}",
            [5, 5, 5, 4, 5, 3, 5],
            steps=5,
            draft_vocab=draft_vocab,
            mode="block",
            agree=agree,
            scale=scale,
        )
    # Joint ratio 1 and no residual mass in front of a rejection: the threshold is 1, not 0 / 0.
    yield make_case(rng, "block_exact_then_rejected", [4] * 7, mode="block", agree=[1.0, 1.0, 1.0, 0.0], scale=6.0)
    yield make_case(rng, "row_of_minus_infinity", [3, 2, 0, 1], dead_rows=(1, 6, 7, 9))
    yield make_case(rng, "int64_everywhere", [3, 2, 4], idx_dtype=torch.int64, token_dtype=torch.int64)
    yield make_case(rng, "bfloat16_logits", [3, 2, 4], logits_dtype=torch.bfloat16, temperatures=mixed)
    yield make_case(rng, "one_step", [1, 0, 1, 1], steps=1, temperatures=mixed)
    yield make_case(rng, "one_step_block", [1, 0, 1, 1], steps=1, mode="block", temperatures=mixed)
    yield make_case(rng, "no_drafts_at_all", [0, 0, 0], temperatures=mixed)
    yield make_case(rng, "empty_batch", [])
    both = make_case(rng, "block_with_synthetic_rates_is_refused", [1], mode="synthetic")
    args, _ = both.make()
    yield Case(both.name, lambda: (args, {"use_block_verification": True}), raises=AssertionError)
    for mode in ("standard", "block"):
        yield make_case(
            rng,
            f"vocabulary_in_pieces_{mode}",
            [2, 0, 1],
            steps=2,
            vocab=9000,
            draft_vocab=8500,
            temperatures=mixed,
            mode=mode,
            small_pieces=True,
            scale=4.0,
            dead_columns=1100,
            dead_rows=(3,),
        )
    yield make_case(
        rng, "block_mass_over_pieces", [4] * 7, vocab=2100, draft_vocab=2100, mode="block", agree=0.6, small_pieces=True
    )
    for i in range(N_RANDOM):
        yield sample(rng, f"random{i}")


def greedy_sample(rng: random.Random, name: str = "drawn") -> Case:
    steps = rng.randrange(1, 6)
    drafts = [rng.randrange(0, steps + 1) for _ in range(rng.randrange(1, 6))]
    return make_case(
        rng,
        name,
        drafts,
        steps,
        vocab=rng.choice([17, 40]),
        draft_vocab=rng.choice([None, 17, 40]),
        temperatures=(0.0,),
        mode=rng.choice(["standard", "synthetic", "block"]),
        agree=rng.choice([0.6, 1.0]),
        ties=rng.random() < 0.3,
    )


def greedy_cases(rng: random.Random) -> Iterator[Case]:
    zero = (0.0,)
    yield make_case(rng, "B11_ties_take_the_lowest_token", [4, 4, 2], ties=True, temperatures=zero, scale=0.4)
    yield make_case(
        rng, "minus_one_synthetic", [4, 3], invalid=(0, 6), temperatures=zero, mode="synthetic", rates=[1.0] * 4
    )
    yield make_case(rng, "minus_one", [4, 3], invalid=(0, 6), temperatures=zero, agree=1.0)
    yield make_case(rng, "B12_draft_vocabulary_is_smaller", [4, 3, 2], vocab=60, draft_vocab=44, temperatures=zero)
    yield make_case(rng, "no_drafts_at_all", [0, 0], temperatures=zero)
    yield make_case(rng, "empty_batch", [])
    yield make_case(
        rng, "vocabulary_in_pieces", [2, 1], vocab=9000, temperatures=zero, small_pieces=True, draft_vocab=None
    )
    for i in range(N_RANDOM):
        yield greedy_sample(rng, f"random{i}")


SITES = (
    Site(
        (32, 33, 34, 35, 36, 37),
        lambda: original(MODULE, "rejection_sample"),
        "spec_decode_rejection_sampler_utils:rejection_sample",
        cases,
        sample,
    ),
    # For where the host knows that every request is greedy.
    Site(
        (33, 35, 36, 37),
        lambda: original(MODULE, "rejection_sample"),
        "spec_decode_rejection_sampler_utils:rejection_sample_greedy",
        greedy_cases,
        greedy_sample,
    ),
)
