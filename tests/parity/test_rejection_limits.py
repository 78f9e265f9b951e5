# SPDX-License-Identifier: Apache-2.0
"""What the rejection sampler promises where upstream in the interpreter is no oracle."""

from __future__ import annotations

import importlib
import random
from typing import Any

import harness
import pytest
import torch
from sites import spec_decode_rejection_sampler_utils as site

LAUNCHER = "spec_decode_rejection_sampler_utils:rejection_sample"


def _run(case: harness.Case, nan: Any = None, backend: str = "torch") -> tuple[torch.Tensor, torch.Tensor]:
    """The fork's result with NaN at target_logits[nan]. The interpreter's maximum takes NaN for the largest value, the
    compiled kernel's does not."""
    args, kwargs = case.make()
    if nan is not None:
        args[0][nan] = torch.nan
    result: Any = harness.implementation(LAUNCHER, backend)(*args, **kwargs)
    return result


@pytest.mark.parametrize("mode", ["standard", "synthetic", "block"])
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_tokens_of_nan_rows_lie_in_the_vocabulary(mode: str, draft_vocab: int | None) -> None:
    case = site.make_case(
        random.Random(1), "nan", [3, 3, 0, 0], draft_vocab=draft_vocab, temperatures=(0.0, 1.0), mode=mode
    )
    sampled, num_sampled = _run(case, slice(None))
    used = torch.arange(sampled.shape[1]) < num_sampled.unsqueeze(1)
    assert bool((num_sampled >= 1).all())
    assert bool(((sampled >= 0) & (sampled < 40))[used].all())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_never_drawn(temperature: float) -> None:
    case = site.make_case(random.Random(4), "nan", [0] * 7, draft_vocab=None, temperatures=(temperature,))
    plain, _ = _run(case)
    rows, drawn = torch.arange(7), plain[:, 0]
    sampled, _ = _run(case, (rows, drawn))
    assert not bool((sampled[:, 0] == drawn).any())


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_first_row_minus_one_in_block_mode(draft_vocab: int | None, backend: str) -> None:
    # Upstream reads in front of the logits here.
    case = site.make_case(
        random.Random(2), "first", [4] * 6, draft_vocab=draft_vocab, mode="block", agree=1.0, invalid=range(0, 30, 5)
    )
    _, num_sampled = _run(case, backend=backend)
    assert num_sampled.tolist() == [1] * 6


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_keeps_the_target_distribution(seed: int) -> None:
    """Over many positions the first token of a request is distributed as the target alone says."""
    torch.manual_seed(seed)
    n, vocab = 20000, 6
    target = torch.randn(1, vocab).repeat(2 * n, 1) * 1.5
    # Like the draft's own sampler in 0.25.1 the draft token is drawn independently of the acceptance test.
    draft = torch.randn(1, 1, vocab) * 1.5
    token = torch.multinomial(draft[0, 0].softmax(0), n, replacement=True)
    tokens = torch.zeros(2 * n, dtype=torch.int32)
    tokens[1::2] = token.to(torch.int32)
    pos = torch.arange(2 * n)
    slots = torch.zeros(n, dtype=torch.int32)
    sampled, _ = harness.implementation(LAUNCHER, "torch")(
        target,
        draft,
        tokens,
        torch.arange(0, 2 * n + 1, 2, dtype=torch.int32),
        pos,
        slots,
        slots.repeat_interleave(2),
        torch.tensor([0, 1], dtype=torch.int32).repeat(n),
        torch.ones(1),
        torch.tensor([seed], dtype=torch.int64),
        1,
    )
    seen = torch.zeros(vocab).index_add_(0, sampled[:, 0], torch.ones(n)) / n
    wanted = target[0].softmax(0)
    # Five standard deviations of a frequency.
    assert bool(((seen - wanted).abs() < 5 * (wanted * (1 - wanted) / n).sqrt()).all()), (seen, wanted)


@pytest.mark.parametrize("rows", [8, 512, 8192])
def test_temporaries_stay_small_however_many_rows(rows: int) -> None:
    """Seen on an H200: 8,192 rows of logits took 1.9 GiB. The noise's pieces: test_memory.py."""
    verification = importlib.import_module(f"{harness.kunlun_package()}.verification")
    logits = torch.empty(rows, 151936, device="meta")
    assert 1 << 22 <= verification.statistics_piece(logits) <= (50 << 20) // 4


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_the_next_requests_token_is_no_draft(backend: str) -> None:
    """It stands behind the last draft, and is here what the bonus row says."""
    logits = torch.zeros(4, 8)
    logits[range(4), [3, 5, 2, 6]] = 1.0
    tokens, rows = torch.tensor([0, 3, 5, 2], dtype=torch.int32), torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    places = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    sampled, num_sampled = harness.implementation(f"{LAUNCHER}_greedy", backend)(
        logits, None, tokens, torch.tensor([0, 2, 4], dtype=torch.int32), torch.arange(4), rows[::2], rows, places,
        torch.zeros(2), torch.zeros(2, dtype=torch.int64), 2,
    )  # fmt: skip
    assert num_sampled.tolist() == [2, 2]
    assert sampled[:, :2].tolist() == [[3, 5], [2, 6]]
