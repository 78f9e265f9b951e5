"""Random numbers: the tokens are those of upstream's kernels in Triton's interpreter, one by one."""

from __future__ import annotations

import jobs
import pytest

CALLS = [(e["name"], c["name"]) for e in jobs.sampled({}) for c in e["calls"]]
DRAFTING = [e["name"] for e in jobs.sampled({}) if e.get("log_drafts")]


@pytest.fixture(scope="module")
def sampled(engines):
    return engines.run("sampled", jobs.sampled(jobs.V2))


@pytest.mark.parametrize(("engine", "call"), CALLS)
def test_sampled_tokens(sampled, interpreter, engine, call):
    expected, said = interpreter[f"sampled: {engine}"]["calls"][call], sampled[engine]["calls"][call]
    assert said["tokens"] == expected["tokens"]
    assert said["metrics"] == expected["metrics"]


@pytest.mark.parametrize("engine", DRAFTING)
def test_drafts_of_every_step(sampled, interpreter, engine):
    assert sampled[engine]["drafts"] == interpreter[f"sampled: {engine}"]["drafts"]


def test_the_fixture_is_about_random_numbers(interpreter):
    calls = interpreter["sampled: no drafts"]["calls"]
    greedy = interpreter["drafts: half"]["calls"]["greedy"]["tokens"]
    for name, call in calls.items():
        drawn = [tokens != expected[: len(tokens)] for tokens, expected in zip(call["tokens"], greedy, strict=True)]
        # Two rows of the mixed batch are greedy, and the most probable token is drawn often.
        assert sum(drawn) >= len(drawn) / 2, name
    for engine in DRAFTING:
        for name, call in interpreter[f"sampled: {engine}"]["calls"].items():
            metrics = call["metrics"]
            assert 0 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"], (engine, name)
