# SPDX-License-Identifier: Apache-2.0
"""How many kernels a launcher starts on a device: counted on a CPU, as operators and Triton kernels that are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import harness
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

SITES = [site for site in harness.all_sites() if "fused" in site.backends]
# Those that look at a whole vocabulary bring the maxima of its blocks together in a second launch.
TWO = {
    "sample_gumbel:gumbel_sample",
    "sample_gumbel:gumbel_sample_greedy",
    "spec_decode_rejection_sampler_utils:rejection_sample_greedy",
}
# Memory, and other names for memory.
FREE = {
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "view", "_unsafe_view", "as_strided",
    "slice", "select", "unsqueeze", "squeeze", "expand", "alias", "detach", "unbind", "split", "t", "transpose",
    "reshape", "lift_fresh",
}  # fmt: skip


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.quiet = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not self.quiet and name not in FREE:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def launches() -> Iterator[list[str]]:
    """The names of what is launched in the block."""
    from triton.runtime.interpreter import GridExecutor

    operators = _Operators()
    whole = GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        operators.seen.append(self.fn.__name__)
        # The interpreter's own business is no launch.
        operators.quiet = True
        try:
            return whole(self, *args, **kwargs)
        finally:
            operators.quiet = False

    with mock.patch.object(GridExecutor, "__call__", call), operators:
        yield operators.seen


def _launched(function: Callable[..., Any], case: harness.Case) -> list[str]:
    args, kwargs = case.make()
    with launches() as seen:
        function(*args, **kwargs)
    return list(seen)


def _left_to_torch(site: harness.Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Noise of float64, and synthetic rates."""
    given = inspect.signature(site.upstream()).bind(*args, **kwargs).arguments
    return bool(given.get("use_fp64")) or given.get("synthetic_conditional_rates") is not None


@pytest.mark.parametrize("site", SITES, ids=[site.launcher for site in SITES])
def test_launches_of_a_site(site: harness.Site, record_property: Any) -> None:
    fused = harness.implementation(site.launcher, "fused")
    torch_ = harness.implementation(site.launcher, "torch")
    most = 0
    for case in harness.all_cases(site):
        args, kwargs = case.make()
        if case.raises is not None or _left_to_torch(site, args, kwargs):
            continue
        groups = len(args[0].block_tables) if site.launcher.startswith("block_table:") else 1
        # A strided mapping is made dense, as upstream does.
        seen = [name for name in _launched(fused, case) if name != "clone"]
        assert len(seen) <= groups * (2 if site.launcher in TWO else 1), (case.name, seen)
        before = _launched(torch_, case)
        assert len(seen) <= len(before), (case.name, seen, before)
        most = max(most, len(before))
    record_property("torch", most)
    print(f"{site.launcher}: torch {most}, fused {2 if site.launcher in TWO else 1}")
    assert most > 1


def test_the_counter_counts() -> None:
    import torch

    with launches() as seen:
        x = torch.empty(4)[:2].view(2)
        x.fill_(1).add_(1)
    assert seen == ["fill_", "add_"]
