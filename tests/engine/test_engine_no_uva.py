"""Without views of host memory: state that is copied to the device, and only where it changed."""

from __future__ import annotations

from dataclasses import asdict

import jobs
import pytest
from e2e import chain
from test_engine_drafts import counted
from test_engine_greedy import close

PLAIN = ("dense", "soft", "chunked", "tight", "prefix", "windows")
CALLS = [(e["name"], c["name"]) for e in jobs.plain({}) if e["name"] in PLAIN for c in e["calls"]]


def _hidden(engine_list):
    return [{**engine, "no_views": True} for engine in engine_list]


@pytest.fixture(scope="module")
def v1(engines):
    return engines.run("plain-v1", jobs.plain(jobs.V1))


@pytest.fixture(scope="module")
def hidden(engines):
    chosen = [engine for engine in jobs.plain(jobs.V2) if engine["name"] in PLAIN]
    return engines.run("no-views", _hidden([*chosen, *jobs.speculative({}, ["half"])]))


@pytest.mark.parametrize(("engine", "call"), CALLS)
def test_it_says_what_v1_says(v1, hidden, engine, call):
    expected, got = v1[engine]["calls"][call], hidden[engine]["calls"][call]
    assert got["tokens"] == expected["tokens"]
    for kind in ("logprobs", "prompt_logprobs"):
        close(got[kind], expected[kind])


def test_acceptance_is_that_of_the_construction(hidden):
    call = hidden["half"]["calls"]["greedy"]
    assert call["tokens"] == [chain.continuation(prompt, 32) for prompt in jobs.EIGHT]
    expected = asdict(chain.acceptance(jobs.EIGHT, "half", length=32, steps=jobs.STEPS))
    assert counted(call) == {**expected, "by_position": list(expected["by_position"])}


def test_the_state_is_the_devices(hidden):
    assert {hidden[engine]["runner"]["buffers"] for engine in (*PLAIN, "half")} == {"DeviceBuffer"}
