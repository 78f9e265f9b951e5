"""A dispatcher is upstream's function to everyone who looks at it."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest


def plain(a, b=1):
    """Plain."""
    return ("upstream", a, b)


def annotated(a: int, b: list[str] | None = None, *rest: int, key: float = 1.0, **more: Any) -> tuple:
    return ("upstream", a, b, rest, key, more)


def positional_only(a, /, b, *, c):
    return ("upstream", a, b, c)


def unusual_default(a=float("-inf"), b=(1, 2), c="x"):
    return ("upstream", a, b, c)


@pytest.fixture
def bind(kunlun):
    def bind(fn):
        site = kunlun.sites.Site((0,), __name__, fn.__qualname__, "", None, "impl")
        return kunlun.dispatch.Binding(site, fn)

    return bind


@pytest.mark.parametrize("fn", [plain, annotated, positional_only, unusual_default])
def test_signature_name_and_doc_are_upstreams(bind, fn):
    dispatcher = bind(fn).dispatcher
    assert inspect.signature(dispatcher) == inspect.signature(fn)
    assert dispatcher.__wrapped__ is fn
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(dispatcher, name) == getattr(fn, name)
    assert inspect.isfunction(dispatcher)
    assert inspect.unwrap(dispatcher) is fn


def test_it_runs_upstream_until_told_otherwise_and_back(bind):
    binding = bind(plain)
    assert binding.dispatcher(1) == ("upstream", 1, 1)
    binding.impl = lambda a, b=1: ("ours", a, b)
    assert binding.dispatcher(1, b=2) == ("ours", 1, 2)
    binding.impl = None
    assert binding.dispatcher(b=5, a=4) == ("upstream", 4, 5)


def test_arguments_and_errors_pass_unchanged(bind):
    dispatcher = bind(annotated).dispatcher
    assert dispatcher(1, None, 2, 3, key=4.0, z=5) == ("upstream", 1, None, (2, 3), 4.0, {"z": 5})
    with pytest.raises(TypeError, match="positional_only"):
        bind(positional_only).dispatcher(a=1, b=2, c=3)


def test_as_a_method_it_gets_self(bind):
    class Holder:
        def method(self, x):
            return ("upstream", self, x)

    binding = bind(Holder.method)
    Holder.method = binding.dispatcher
    holder = Holder()
    assert holder.method(1) == ("upstream", holder, 1)
    binding.impl = lambda self, x: ("ours", self, x)
    assert holder.method(1) == ("ours", holder, 1)


def test_only_the_dispatcher_itself_is_one(kunlun, bind):
    import functools

    binding = bind(plain)
    assert kunlun.dispatch.binding_of(binding.dispatcher) is binding

    @functools.wraps(binding.dispatcher)
    def wrapper(*args):
        return binding.dispatcher(*args)

    assert kunlun.dispatch.binding_of(wrapper) is None
    assert kunlun.dispatch.binding_of(plain) is None
    assert kunlun.dispatch.binding_of(None) is None


def test_it_pickles_by_name_like_upstreams(bind, monkeypatch):
    dispatcher = bind(plain).dispatcher
    monkeypatch.setitem(globals(), "plain", dispatcher)
    assert pickle.loads(pickle.dumps(dispatcher)) is dispatcher


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (plain, "(a, b=1)"),
        (annotated, "(a, b=None, *rest, key=1.0, **more)"),
        (positional_only, "(a, /, b, *, c)"),
        (unusual_default, "(a=-inf, b=(1, 2), c='x')"),
    ],
)
def test_signature_text_has_no_annotations(kunlun, fn, expected):
    assert kunlun.dispatch.signature(fn) == expected
