# SPDX-License-Identifier: Apache-2.0
"""Every site, every case, every backend against upstream in the Triton interpreter."""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SITES = harness.all_sites()


def _cells() -> Iterator[Any]:
    for site in SITES:
        for case in harness.all_cases(site):
            for backend in site.backends:
                yield pytest.param(site, case, backend, id=f"{site.launcher}-{case.name}-{backend}")


def _per_site(with_sample: bool) -> list[Any]:
    return [
        pytest.param(site, backend, id=f"{site.launcher}-{backend}")
        for site in SITES
        for backend in site.backends
        if site.sample is not None or not with_sample
    ]


CELLS = list(_cells())


@pytest.mark.parametrize(("site", "case", "backend"), CELLS)
def test_parity(site: harness.Site, case: harness.Case, backend: str, record_property: Any) -> None:
    report = harness.check(site, case, backend)
    record_property("max_error", report.max_error)


@pytest.mark.parametrize(("site", "backend"), _per_site(with_sample=True))
def test_random_inputs(site: harness.Site, backend: str) -> None:
    @settings(
        max_examples=max(4, harness.N_RANDOM),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def drawn(rng: random.Random) -> None:
        assert site.sample is not None
        harness.check(site, site.sample(rng), backend)

    drawn()


def _arguments(function: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    returns = ast.unparse(node.returns) if node.returns else ""
    return f"({ast.unparse(node.args)}) -> {returns}".replace("'", "").replace('"', "")


@pytest.mark.parametrize(("site", "backend"), _per_site(with_sample=False))
def test_signature(site: harness.Site, backend: str) -> None:
    assert _arguments(harness.implementation(site.launcher, backend)) == _arguments(site.upstream())
