# SPDX-License-Identifier: Apache-2.0
"""What a GPU may round otherwise: its arithmetic imitated passes, a little more does not, and a CPU may nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from harness import Case, Mismatch, Site
from rounding import penalised, quotient, spacing

INF, NAN = float("inf"), float("nan")
TEMPERATURE, PENALTIES = "sample_gumbel:apply_temperature", "sample_penalties:apply_penalties"
# Until 0.28.0 what is remembered of a draft was divided, too.
STORED = () if harness.PIN >= (0, 28) else ("sample_gumbel:gumbel_sample", "sample_gumbel:gumbel_sample_greedy")
DIVIDING = (TEMPERATURE, PENALTIES, *STORED[:1])
SITES = {site.launcher: site for site in harness.all_sites()}


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors stay here, but the comparison takes this for another device."""
    monkeypatch.setattr(harness, "DEVICE", SimpleNamespace(type="elsewhere"))
    monkeypatch.setattr(harness, "place", lambda args, kwargs: (args, kwargs))
    yield
    harness._last = None


def _steps(x: torch.Tensor, count: int) -> torch.Tensor:
    """The number that lies `count` numbers further from zero."""
    finite = x.isfinite() & (x.abs() > 1e-30)
    return torch.where(finite, (x.view(torch.int32) + count).view(torch.float32), x)


def _temperature(steps: int) -> Callable[..., None]:
    def function(logits: torch.Tensor, idx: torch.Tensor, temperature: torch.Tensor) -> None:
        by = temperature[idx.long(), None]
        logits.copy_(torch.where((by == 0) | (by == 1), logits, _steps(logits / by, steps)))

    return function


def _penalties(steps: int, share: float) -> Callable[..., None]:
    """The arithmetic of a GPU: an approximate reciprocal, and one rounding of a difference with a product."""

    def function(logits: torch.Tensor, *args: Any) -> None:
        idx, _, _, repetition, frequency, presence = args[:6]
        before = logits.clone()
        counted, masked, seen = _counts(logits, *args)
        rep, freq, pres = (x[idx.long(), None] for x in (repetition, frequency, presence))
        used = (rep != 1) | (freq != 0) | (pres != 0)
        scale = torch.where(masked | seen, rep, torch.ones(()))
        one = torch.where(scale == 1, scale, _steps(1 / scale, steps))
        scaled = torch.where(rep != 1, logits * torch.where(logits > 0, one, scale), logits)
        fused = (scaled.double() - freq.double() * (1 + share) * counted).float()
        fused = (fused.double() - pres.double() * seen).float()
        logits.copy_(torch.where(used, fused, before))

    return function


def _counts(logits: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    idx, drafted, local, _, _, _, bits, counts = args
    vocab = logits.shape[1]
    counted = counts[idx.long()].clone()
    for row, position in enumerate(local.tolist()):
        for token in drafted[row - position + 1 : row + 1].tolist():
            if 0 <= token < vocab:
                counted[row, token] += 1
    words = bits[idx.long()].repeat_interleave(32, 1)[:, :vocab]
    masked = (words >> (torch.arange(vocab) % 32)) & 1 != 0
    return counted, masked, counted > 0


def _compare(site: Site, case: Case, function: Any) -> harness.Report:
    return harness.compare(site, case, "imitated", harness.run_upstream(site, case), function, None)


def _outcomes(launcher: str, function: Any) -> dict[str, bool]:
    found = {}
    for case in harness.all_cases(SITES[launcher]):
        if case.make()[0][0].dtype != torch.float32:
            continue  # the bounds are of float32; to 16 bits either result is rounded once more
        try:
            _compare(SITES[launcher], case, function)
            found[case.name] = True
        except Mismatch:
            found[case.name] = False
    return found


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("steps", [-2, -1, 1, 2])
def test_a_gpu_may_be_two_units_off(steps: int) -> None:
    assert all(_outcomes("sample_gumbel:apply_temperature", _temperature(steps)).values())
    assert all(_outcomes("sample_penalties:apply_penalties", _penalties(steps, 0.0)).values())


@pytest.mark.usefixtures("_gpu")
def test_not_more() -> None:
    tempered = _outcomes("sample_gumbel:apply_temperature", _temperature(3))
    assert not tempered["plain_division_of_odd_values"] and not tempered["more_than_one_block_of_8192"]
    scaled = _outcomes("sample_penalties:apply_penalties", _penalties(16, 0.0))
    assert scaled["frequency_alone"] and not scaled["repetition_alone"]
    counted = _outcomes("sample_penalties:apply_penalties", _penalties(0, 1e-5))
    assert counted["repetition_alone"] and not counted["frequency_alone"]


@pytest.mark.parametrize("launcher", DIVIDING)
def test_a_cpu_may_not(launcher: str) -> None:
    assert harness.DEVICE.type == "cpu"
    for case in harness.all_cases(SITES[launcher]):
        assert harness.comparison_of(case, harness.run_upstream(SITES[launcher], case)).bounds == {}
    one = _temperature(1), _penalties(1, 0.0)
    assert launcher in STORED or not all(_outcomes(launcher, one[launcher == PENALTIES]).values())


def test_other_sites_are_exact_everywhere() -> None:
    loose = {site.launcher for site in SITES.values() if any(case.rounding for case in harness.all_cases(site))}
    assert loose == {*DIVIDING, *STORED}


def test_spacing() -> None:
    for dtype, bits in ((torch.float32, torch.int32), (torch.float16, torch.int16), (torch.bfloat16, torch.int16)):
        x = torch.tensor([1.0, -1.5, 3.0, 100.0, 2.0**-10], dtype=dtype)
        further = (x.view(bits) + 1).view(dtype)
        assert torch.equal(spacing(x), (further.double() - x.double()).abs())
    assert spacing(torch.zeros(1)) == 2.0**-149
    assert torch.equal(quotient(harness.State(), torch.tensor([2.0])), torch.tensor([2.0**-21], dtype=torch.float64))


def test_rows_without_penalties_are_exact() -> None:
    state = harness.State(arg0=torch.ones(2, 3), arg1=torch.tensor([1, 0]))
    state.update(arg4=torch.tensor([1.5, 1.0]), arg5=torch.zeros(2), arg6=torch.zeros(2))
    bound = penalised(state, torch.ones(2, 3))
    assert (bound[0] == 0).all() and (bound[1] > 0).all()


def test_no_bound_holds_for_infinities() -> None:
    for want, got in ((INF, 1.0), (1.0, NAN), (INF, -INF), (NAN, 1.0)):
        compared = harness.Comparison(bounds={"x": torch.tensor([1e9])})
        compared.tensor("x", torch.tensor([want]), torch.tensor([got]))
        assert compared.problems
    near = harness.Comparison(bounds={"x": torch.tensor([0.5, 0.0])})
    near.tensor("x", torch.tensor([1.0, 2.0]), torch.tensor([1.25, 2.0]))
    assert not near.problems and near.max_error == 0.25
