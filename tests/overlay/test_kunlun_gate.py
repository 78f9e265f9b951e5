"""What vllm/config/vllm.py asks instead of HAS_TRITON."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def gate(kunlun, monkeypatch):
    """Makes the gate of a process: what upstream says about Triton, the environment, and what is wrong."""
    for name in [n for n in os.environ if n.startswith("KUNLUN_")]:
        monkeypatch.delenv(name)
    log: list[str] = []

    def make(has_triton, upstream=(), ours="", **environ):
        for name, value in environ.items():
            monkeypatch.setenv(f"KUNLUN_{name}", value)
        logger = SimpleNamespace(warning=lambda text, *args: log.append(text % args))
        for name, attributes in (
            ("vllm", {}),
            ("vllm.logger", {"init_logger": lambda name: logger}),
            ("vllm.triton_utils", {"HAS_TRITON": has_triton}),
        ):
            module = ModuleType(name)
            module.__dict__.update(attributes)
            monkeypatch.setitem(sys.modules, name, module)
        name = kunlun.backend.__package__ + ".gate"
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        asked = []

        def decide(switches, probe, sites):
            asked.append(switches)
            assert probe() == (False, "vLLM found no Triton")
            assert sites is kunlun.sites.SITES
            if ours:
                raise ours

        monkeypatch.setattr(kunlun.upstream_source, "problems", lambda sites: upstream)
        monkeypatch.setattr(kunlun.backend, "decide", decide)
        return SimpleNamespace(open=lambda: bool(module.HAS_TRITON), asked=asked, log=log)

    return make


def test_it_opens_where_the_fork_is_complete_and_looks_once(gate):
    made = gate(has_triton=False)
    assert made.open() and made.open()
    assert len(made.asked) == 1
    assert made.log == []


def test_where_there_is_triton_nothing_is_looked_at(gate):
    made = gate(has_triton=True, upstream=("broken",))
    assert made.open()
    assert made.asked == made.log == []


@pytest.mark.parametrize("has_triton", [True, False])
def test_upstreams_kernels_are_upstreams_answer(gate, has_triton):
    made = gate(has_triton=has_triton, KERNELS="upstream")
    assert made.open() is has_triton
    assert made.asked == []


def test_upstream_that_has_drifted_closes_it_and_is_named_once(gate):
    made = gate(has_triton=False, upstream=("m:f: expected this, found that", "m:g: nothing"))
    assert not made.open() and not made.open()
    assert made.log == [
        "kunlunfork cannot stand in for Triton under Model Runner V2: m:f: expected this, found that; m:g: nothing"
    ]


@pytest.mark.parametrize("missing", [True, False])
def test_an_implementation_that_is_missing_or_does_not_load_closes_it(kunlun, gate, missing):
    error = kunlun.backend.BackendError if missing else ImportError
    made = gate(has_triton=False, ours=error("launchers.x: gone"))
    assert not made.open()
    assert made.log == ["kunlunfork cannot stand in for Triton under Model Runner V2: launchers.x: gone"]


def test_the_switches_count(gate, monkeypatch):
    made = gate(has_triton=False, HOSTVEC="0")
    assert made.open()
    assert made.asked[0].hostvec is False
    # An environment that changes is looked at again.
    monkeypatch.setenv("KUNLUN_HOSTVEC", "1")
    assert made.open()
    assert made.asked[1].hostvec is True
