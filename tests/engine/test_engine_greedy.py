"""Without Triton, runner V2 says what runner V1 says."""

from __future__ import annotations

import jobs
import pytest
from e2e import chain

PLAIN = [(e["name"], c["name"]) for e in jobs.plain({}) for c in e["calls"]]


@pytest.fixture(scope="module")
def v1(engines):
    return engines.run("plain-v1", jobs.plain(jobs.V1))


@pytest.fixture(scope="module")
def v2(engines):
    return engines.run("plain-v2", jobs.plain(jobs.V2))


@pytest.mark.parametrize(("engine", "call"), PLAIN)
def test_v2_says_what_v1_says(v1, v2, engine, call):
    expected, got = v1[engine]["calls"][call], v2[engine]["calls"][call]
    assert got["tokens"] == expected["tokens"]
    for kind in ("logprobs", "prompt_logprobs"):
        close(got[kind], expected[kind])


def close(got, expected):
    """The same tokens at every position, and log probabilities equal to the fourth decimal."""
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours is None) == (theirs is None)
        for here, there in zip(ours or [], theirs or [], strict=True):
            assert (here is None) == (there is None)
            if here is not None:
                assert [token for token, _ in here] == [token for token, _ in there]
                assert [p for _, p in here] == pytest.approx([p for _, p in there], abs=5e-5)


def test_what_they_say_is_right(v2):
    said = v2["chain"]["calls"]["greedy"]["tokens"]
    assert said == [chain.continuation(prompt, 64) for prompt in jobs.SIXTEEN]


@pytest.mark.parametrize("engine", ["chain", "prefix"])
def test_the_runners_are_what_they_should_be(v1, v2, engine):
    assert v1[engine]["runner"] == {"class": "vllm.v1.worker.cpu_model_runner.CPUModelRunner"}
    runner = v2[engine]["runner"]
    assert runner["class"] == "vllm.v1.worker.gpu.model_runner_v2.CPUModelRunnerV2"
    assert runner["plan"] == "torch kernels (auto: vLLM found no Triton)"
    assert runner["next_power_of_2 of 5"] == 8
    assert set(runner["owners"].values()) == {"kunlunfork", "not loaded"}
    assert sum(owner == "kunlunfork" for owner in runner["owners"].values()) > 20


# Those that V1 and V2 could agree on by doing nothing.
@pytest.mark.parametrize(
    "option", ["penalties", "logit bias", "allowed", "min tokens", "bad words", "bad word behind three", "structured"]
)
def test_an_option_that_was_compared_makes_a_difference(v2, option):
    calls = v2["soft"]["calls"]
    assert calls[option]["tokens"] != calls["nothing"]["tokens"]


def test_a_grammar_is_followed_to_its_end(v2):
    words = chain.continuation(jobs.LONG[0], 9)
    assert v2["soft"]["calls"]["structured"]["tokens"][0] == [*words, chain.END]


def test_what_is_cut_away_leaves_the_greedy_token(v2):
    calls = v2["soft"]["calls"]
    for option in ("top k", "top p", "min p"):
        assert calls[option]["tokens"] == calls["nothing"]["tokens"]


def test_the_conditions_of_the_other_cases_hold(v2):
    assert v2["tight"]["calls"]["greedy"]["metrics"]["num_preemptions"] > 0
    assert max(len(prompt) for prompt in jobs.LONG) > 32, "no prompt needs a second chunk"
    assert v2["prefix"]["calls"]["warm"]["cached"] == [64] * 8
    assert (v2["chain"]["runner"]["cache_groups"], v2["windows"]["runner"]["cache_groups"]) == (1, 3)


def test_runner_v1_of_the_fork_is_upstreams(engines, v1):
    """The fork's tree leaves it alone, sampling with random numbers included."""
    few = jobs.plain(jobs.V1)[:2]
    drawn = jobs.sampled(jobs.V1)[0]
    pristine = engines.run("v1-pristine", [*few, drawn], fork=False)
    forked = engines.run("v1-fork", [*few, drawn])
    for name, expected in pristine.items():
        assert forked[name]["runner"] == expected["runner"]
        for call, said in expected["calls"].items():
            got = forked[name]["calls"][call]
            assert [got[k] for k in ("tokens", "logprobs", "prompt_logprobs")] == [
                said[k] for k in ("tokens", "logprobs", "prompt_logprobs")
            ]
