# SPDX-License-Identifier: Apache-2.0
"""The comparison itself: each way in which a result can differ is a problem, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from compare import Comparison, State, walk
from harness import Case, Mismatch, Site


def _upstream(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    self.table[:n] = 7
    self.calls.append(n)
    return self.table[:n]


def _make() -> tuple[tuple[Any, ...], dict[str, Any]]:
    table = torch.arange(8, dtype=torch.int32)
    state = SimpleNamespace(table=table[2:6], calls=[0, 1], host=table.numpy().copy(), free=None)
    return (state, torch.ones(3), 2), {}


def _check(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], case: Case | None = None) -> None:
    monkeypatch.setattr(harness, "implementation", lambda launcher, backend: function)
    site = Site((0,), lambda: _upstream, "none:none", lambda rng: ())
    harness.check(site, case or Case("case", _make), "torch")


def test_equal_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    _check(monkeypatch, _upstream)


def _outside(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    self.table.as_strided((1,), (1,), 7).fill_(1)
    return _upstream(self, x, n)


def _input_changed(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    x[2] = 0
    return _upstream(self, x, n)


def _rebound(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    self.table = self.table.clone()
    return _upstream(self, x, n)


def _host_changed(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    self.host[3] += 1
    return _upstream(self, x, n)


def _attribute_added(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    self.extra = 1
    return _upstream(self, x, n)


def _list_not_grown(self: Any, x: torch.Tensor, n: int) -> torch.Tensor:
    result = _upstream(self, x, n)
    self.calls.pop()
    return result


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_outside, "bytes outside"),
        (_input_changed, "arg1: 1 of 3"),
        (_rebound, "moved to another address"),
        (_host_changed, "arg0.host"),
        (_attribute_added, "arg0.extra: only the fork"),
        (_list_not_grown, "arg0.calls"),
        (lambda self, x, n: _upstream(self, x, n).clone(), "shares memory with nothing"),
        (lambda self, x, n: _upstream(self, x, n)[[0, 1]].to(torch.int64), "ret: torch.int64"),
        (lambda self, x, n: (_upstream(self, x, n), self.table[1:3])[1], "ret: 1 of 2"),
        (lambda self, x, n: (_upstream(self, x, n), self.table[2:].fill_(7))[1], "a different view"),
        (lambda self, x, n: (_upstream(self, x, n),), "ret: only upstream"),
        (lambda self, x, n: [_upstream(self, x, n), x.tolist()], "tolist"),
    ],
)
def test_difference_is_seen(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        _check(monkeypatch, function)


def test_unrepeatable_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter(range(9))

    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = _make()
        args[0].calls.append(next(values))
        return args, kwargs

    with pytest.raises(Mismatch, match="not repeatable"):
        _check(monkeypatch, _upstream, Case("case", make))


def test_skip_and_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    _check(monkeypatch, _attribute_added, Case("case", _make, skip=("arg0.extra",)))
    masks = {"arg1": torch.tensor([False, False, True])}
    _check(monkeypatch, _input_changed, Case("case", _make, ignore=lambda state: masks))


def _compare(want: torch.Tensor, got: torch.Tensor, **options: Any) -> Comparison:
    comparison = Comparison(**options)
    comparison.states(State(x=want), State(x=got))
    return comparison


def test_floats() -> None:
    nan, inf = float("nan"), float("inf")
    assert not _compare(torch.tensor([nan, inf, -0.0]), torch.tensor([nan, inf, -0.0])).problems
    assert _compare(torch.tensor([0.0]), torch.tensor([-0.0])).problems
    assert _compare(torch.tensor([inf]), torch.tensor([-inf]), tolerance={"x": (1e-3, 1.0)}).problems
    near = _compare(torch.tensor([1.0, nan]), torch.tensor([1.25, nan]), tolerance={"x": (0.0, 0.5)})
    assert not near.problems and near.max_error == 0.25
    assert _compare(torch.tensor([1.0]), torch.tensor([2.0]), tolerance={"x": (0.0, 0.5)}).problems


def test_walk_names_paths() -> None:
    into: dict[str, Any] = {}
    x = torch.zeros(1)
    walk("a", {"k": [x, (1, 2)], "f": test_floats}, into)
    assert set(into) == {"a#keys", "a[k]#len", "a[k][0]", "a[k][1]"}
    loop = SimpleNamespace(x=1)
    loop.me = loop
    walk("b", loop, into)
    assert into["b.x"] == 1 and "b.me" not in into
