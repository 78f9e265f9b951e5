# SPDX-License-Identifier: Apache-2.0
"""Every launcher, recorded on one input and replayed on others: what tests/device does in CUDA graphs, on a CPU."""

from __future__ import annotations

import copy
import dataclasses
import random
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pytest
import replay
import torch
from harness import Case, Site
from placing import place

SITES = [site for site in harness.all_sites() if site.sample is not None]


@pytest.mark.parametrize("site", SITES, ids=[site.launcher for site in SITES])
def test_replayed_on_other_data(site: Site) -> None:
    verdicts = replay.check(site, "torch", count=2, draws=700)
    assert verdicts and replay.unexpected(verdicts) == []
    if site.launcher not in replay.ON_THE_HOST:
        assert {v.outcome for v in verdicts} == {replay.OK}


def _case(name: str, rows: list[int]) -> Case:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor(rows), torch.arange(10.0), torch.zeros(len(rows))), {}

    return Case(name, make)


def _gather(rows: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    taken = table.index_select(0, rows)
    taken.unsqueeze_(1)
    out.copy_(taken.squeeze(1))
    return out * 2


def _baked(rows: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(torch.stack([table[int(row)] for row in rows.numpy()]))
    return out * 2


def _asks(rows: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return _gather(rows, table, out) if rows[0].item() >= 0 else out


def _site() -> Site:
    def cases(rng: random.Random) -> Iterator[Case]:
        yield _case("short", [1])
        yield _case("one", [1, 2, 3])
        yield _case("other", [4, 2, 0])

    return Site((0,), lambda: _gather, "none:gather", cases, lambda rng, name="drawn": _case(name, [1, 2, 3]))


@pytest.mark.parametrize(
    ("function", "outcome"), [(_gather, replay.OK), (_baked, replay.NO_CAPTURE), (_asks, replay.NO_CAPTURE)]
)
def test_what_the_host_has_read_is_found(function: Any, outcome: str) -> None:
    (pair,) = replay.pairs(_site(), 1, 0)
    assert (pair.first.name, pair.second.name, pair.host_alike) == ("one", "other", True)
    assert replay._verdict(_site(), "torch", pair, function, "").outcome == outcome


def test_a_stale_number_is_a_difference() -> None:
    (pair,) = replay.pairs(_site(), 1, 0)
    assert replay.replayed(_site(), pair, _gather, replay.Recording()) == []
    (first, second) = replay.replayed(_site(), pair, _baked, replay.Recording())
    assert first.startswith("arg2:") and second.startswith("ret:")


def test_place_keeps_what_shares_memory_and_translates_addresses() -> None:
    wide = torch.arange(40).view(4, 10)
    owner = SimpleNamespace(
        table=wide[1:3, 2:5],
        pointers=torch.tensor([wide.data_ptr() + 16, 12345], dtype=torch.uint64),
        signed=torch.tensor([-1, wide.data_ptr() + 8]),
        cache=weakref.ref(wide),
        rows_cpu=torch.ones(2),
        device=torch.device("cpu"),
        host=np.arange(3),
    )
    given = {"x": wide, "pair": (wide[0], [wide[3]])}
    rows, host = owner.rows_cpu, owner.host
    (placed,), kwargs = place((owner,), dict(given))
    moved = kwargs["x"]
    assert torch.equal(moved, wide) and moved.data_ptr() != wide.data_ptr()
    assert placed.table.data_ptr() == moved[1:3, 2:5].data_ptr() and placed.table.stride() == (10, 1)
    assert kwargs["pair"][0].data_ptr() == moved.data_ptr()
    assert kwargs["pair"][1][0].data_ptr() == moved[3].data_ptr()
    assert placed.pointers.tolist() == [moved.data_ptr() + 16, 12345]
    assert placed.signed.tolist() == [-1, moved.data_ptr() + 8]
    # Whoever holds the tensor keeps the reference alive.
    del wide, given
    assert placed.cache() is moved
    assert placed.rows_cpu is rows and placed.host is host


class _Elsewhere:
    type = "elsewhere"


@pytest.mark.parametrize("site", SITES, ids=[site.launcher for site in SITES])
def test_what_is_placed_computes_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's kernels follow the translated addresses, and nothing is read where it was before."""
    monkeypatch.setattr(harness, "DEVICE", _Elsewhere())
    monkeypatch.setattr(harness, "place", lambda args, kwargs: place(args, kwargs, torch.device("cpu"), spoil=0x5B))
    for case in [c for c in harness.all_cases(site) if c.raises is None][:6]:
        harness.check(site, case, "torch")


def test_what_the_host_holds_is_that_of_the_captured_input() -> None:
    """Of the pair only the device's tensors change; what a launcher writes to the host, it writes while captured."""

    def make(rows: list[int]) -> Any:
        owner = SimpleNamespace(delta_cpu=torch.tensor(rows), out=torch.zeros(3))
        return lambda: copy.deepcopy(((owner, torch.tensor(rows)), {}))

    def doubled(owner: Any, rows: torch.Tensor) -> None:
        owner.out.copy_(rows * 2)

    def scribbled(owner: Any, rows: torch.Tensor) -> None:
        doubled(owner, rows)
        owner.delta_cpu.add_(1)

    site = dataclasses.replace(_site(), upstream=lambda: doubled)
    pair = replay.Pair(Case("one", make([1, 2, 3])), Case("other", make([4, 2, 0])), host_alike=True, changed=1)
    assert replay.replayed(site, pair, doubled, replay.Recording()) == []
    (problem,) = replay.replayed(site, pair, scribbled, replay.Recording())
    assert problem.startswith("arg0.delta_cpu:")
