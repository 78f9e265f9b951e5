"""What counts as a difference between two engines' answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import e2ekit
import pytest

from kunlunfork.matrix import e2escenarios
from kunlunfork.matrix.e2ecompare import Answer, compare

LOGPROBS = [[[5, -0.5], [6, -1.5]], [[7, -0.25], [8, -2.0]]]


def said() -> dict[str, Any]:
    completion = {"tokens": [5, 7], "text": "t5 t7", "finish": "length", "stop": None, "logprobs": LOGPROBS}
    request = {
        "completions": [completion, {**completion, "tokens": [6, 8]}],
        "prompt_logprobs": [None, [[3, -1.0]]],
        "cached": 32,
    }
    whole = {"requests": [request, request], "counters": {"num_drafts": 4, "per_pos": [3, 1]}}
    # As it comes from a process; no part is there twice.
    made: dict[str, Any] = json.loads(json.dumps(whole))
    return made


ABOUT = {"fork": {"class": "x.CPUModelRunnerV2", "backend": "torch", "sites": ["launchers"], "views": True},
         "v1": {"class": "vllm.v1.worker.cpu_model_runner.CPUModelRunner"},
         "v2": {"class": "vllm.v1.worker.cpu.model_runner.CPUModelRunner"}}  # fmt: skip


def found(kind: str, change: Callable[[dict[str, Any]], object], **more: Any) -> tuple[Any, float]:
    raw = {"name": "a", "calls": [{}], "oracles": [kind], "ranges": {}, "unlike": None, "known": [], **more}
    scenario = e2escenarios.parse(e2ekit.scenario("s", raw))
    ours, theirs = said(), said()
    change(ours)
    answers = {k: Answer({"async_scheduling": False, "runners": [a]}, [], 0.0) for k, a in ABOUT.items()}
    fork = Answer(answers["fork"].about, [ours], 1.0)
    return compare(scenario, scenario.cases[0], "all-on", fork, {kind: Answer(answers[kind].about, [theirs], 1.0)})


def request(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = value["requests"][1]
    return found


def completion(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = request(value)["completions"][1]
    return found


def test_the_same_is_no_difference() -> None:
    assert found("v1", lambda s: None) == (None, 0.0)
    assert found("v2", lambda s: None) == (None, 0.0)


NAME = "call0.request1"
CHANGES: list[tuple[Callable[[dict[str, Any]], object], str, tuple[int, ...]]] = [
    (lambda s: completion(s)["tokens"].__setitem__(1, 9), f"{NAME}.completion1.tokens", (1,)),
    (lambda s: completion(s)["tokens"].append(9), f"{NAME}.completion1.tokens.length", ()),
    (lambda s: completion(s)["tokens"].clear(), f"{NAME}.completion1.tokens.length", ()),
    (lambda s: completion(s).update(text="t5"), f"{NAME}.completion1.text", ()),
    (lambda s: completion(s).update(finish="stop"), f"{NAME}.completion1.finish", ()),
    (lambda s: completion(s).update(stop="t7"), f"{NAME}.completion1.stop", ()),
    (lambda s: completion(s).update(logprobs=None), f"{NAME}.completion1.logprobs", ()),
    (lambda s: completion(s)["logprobs"].pop(), f"{NAME}.completion1.logprobs.length", ()),
    (lambda s: completion(s)["logprobs"][1].pop(), f"{NAME}.completion1.logprobs", (1,)),
    (lambda s: completion(s)["logprobs"][1][0].__setitem__(1, -0.2502), f"{NAME}.completion1.logprobs", (1, 7)),
    (lambda s: completion(s)["logprobs"][1][0].__setitem__(1, math.nan), f"{NAME}.completion1.logprobs", (1, 7)),
    (lambda s: completion(s)["logprobs"][1][0].__setitem__(1, -math.inf), f"{NAME}.completion1.logprobs", (1, 7)),
    (lambda s: request(s)["prompt_logprobs"].__setitem__(0, []), f"{NAME}.prompt_logprobs", (0,)),
    (lambda s: request(s)["completions"].pop(), f"{NAME}.completions", ()),
    (lambda s: s["requests"].pop(), "call0.requests", ()),
    (lambda s: s["requests"].__setitem__(1, None), NAME, ()),
]


@pytest.mark.parametrize("kind", ["v1", "v2"])
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_every_part_of_an_answer_counts(kind: str, number: int) -> None:
    change, where, index = CHANGES[number]
    difference, _ = found(kind, change)
    assert (difference.where, difference.index) == (f"{kind}.{where}", index)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda s: request(s).update(cached=0), f"{NAME}.cached"),
        (lambda s: s["counters"].update(num_drafts=5), "call0.num_drafts"),
        (lambda s: s["counters"].pop("per_pos"), "call0.per_pos"),
    ],
)
def test_counters_are_those_of_the_same_runner(change: Callable[[dict[str, Any]], object], where: str) -> None:
    assert found("v1", change) == (None, 0.0)
    assert found("v2", change)[0].where == f"v2.{where}"


def test_a_log_probability_may_be_a_little_off() -> None:
    difference, error = found("v1", lambda s: completion(s)["logprobs"][1][0].__setitem__(1, -0.25001))
    assert difference is None
    assert error == pytest.approx(1e-5)


def test_where_an_aborted_request_had_got_to_is_a_matter_of_drafts() -> None:
    def aborted(value: dict[str, Any]) -> None:
        for one in request(value)["completions"]:
            one.update(finish="abort", tokens=[])

    # One of them went on to its end.
    assert found("v1", aborted)[0].where == f"v1.{NAME}"
    assert found("v2", aborted)[0].where == f"v2.{NAME}.tokens.length"


KNOWN = {"tokens": [[5, 7], [5, 7]], "counters": {"num_drafts": 4}}


def test_known_answers() -> None:
    assert found("v1", lambda s: None, known=[KNOWN]) == (None, 0.0)
    other = {**KNOWN, "tokens": [[5, 7], [5, 8]]}
    difference, _ = found("v1", lambda s: None, known=[other])
    assert (difference.where, difference.index) == ("known.call0.request1.tokens", (1,))
    difference, _ = found("v1", lambda s: None, known=[{**KNOWN, "counters": {"num_drafts": 3}}])
    assert difference.where == "known.call0.num_drafts"


def test_matches_are_counted() -> None:
    asked = {"answers": ["t5 t7", "t5 t8"]}
    assert found("v1", lambda s: None, calls=[asked], ranges={"matches": [1, 1]}) == (None, 0.0)
    difference, _ = found("v1", lambda s: None, calls=[asked], ranges={"matches": [2, None]})
    assert difference.message == "matches is 1, expected 2 to any"


def test_cached_tokens_can_be_asked_for() -> None:
    assert found("v1", lambda s: None, ranges={"cached": [64, 64]}) == (None, 0.0)
    difference, _ = found("v1", lambda s: None, ranges={"cached": [65, None]})
    assert difference.message == "cached is 64, expected 65 to any"
