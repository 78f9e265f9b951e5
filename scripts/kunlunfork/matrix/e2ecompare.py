"""What an engine of the fork said against what upstream's said: the first difference, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunlunfork.matrix.e2eengines import FORK, V1, V2
from kunlunfork.matrix.e2escenarios import BACKEND, Case, Scenario

# Log probabilities pass through sums whose order is a library's; the tokens do not.
TOLERANCE = 5e-5
_CLASSES = {FORK: "ModelRunnerV2", V1: ".cpu_model_runner.CPUModelRunner", V2: ".cpu.model_runner.CPUModelRunner"}


@dataclass(frozen=True)
class Answer:
    """What an engine said to a case. `about`: the engine; `said`: per call {"requests", "counters"}."""

    about: Mapping[str, Any]
    said: Sequence[Mapping[str, Any]]
    seconds: float


@dataclass(frozen=True)
class Difference:
    """`where`: the path of what differs; `index`: of the first element that does."""

    message: str
    where: str | None = None
    index: tuple[int, ...] | None = None


class _Differs(Exception):
    def __init__(self, where: str, index: tuple[int, ...], fork: object, upstream: object) -> None:
        super().__init__(where)
        place = "".join(f"[{i}]" for i in index)
        self.told = Difference(f"{where}{place}: {fork!r:.200}, upstream {upstream!r:.200}", where, index)


def unsound(scenario: Scenario, case: Case, kind: str, answer: Answer, other: Answer | None) -> str | None:
    """Why an oracle's answer is none: another runner gave it, or what the case is about did not happen.

    other: the answer to the case that this one must be unlike.
    """
    return (
        _runs(scenario, kind, answer, None)
        or _out_of_range(case, answer, must_count=False)
        or (
            f"{kind} says the same as without: the case compares nothing"
            if other is not None and _tokens(answer) == _tokens(other)
            else None
        )
    )


def compare(
    scenario: Scenario, case: Case, setting: str, answer: Answer, oracles: Mapping[str, Answer]
) -> tuple[Difference | None, float]:
    """The first thing that the fork says differently, and the largest error of a log probability up to there."""
    wrong = _runs(scenario, FORK, answer, setting) or _out_of_range(case, answer, must_count=True)
    worst = [0.0]
    try:
        for kind, theirs in oracles.items():
            for number, (said, expected) in enumerate(zip(answer.said, theirs.said, strict=True)):
                _same_call(f"{kind}.call{number}", said, expected, kind == V2, worst)
        for number, (said, known) in enumerate(zip(answer.said, case.known)):  # noqa: B905 - none may be known
            for i, (request, tokens) in enumerate(zip(said["requests"], known["tokens"], strict=True)):
                _same_list(f"known.call{number}.request{i}.tokens", (), request["completions"][0]["tokens"], tokens)
            _same_counters(f"known.call{number}", said["counters"], known.get("counters", {}))
    except _Differs as e:
        return e.told, worst[0]
    return (None if wrong is None else Difference(wrong)), worst[0]


def _runs(scenario: Scenario, kind: str, answer: Answer, setting: str | None) -> str | None:
    """What runs is not what was asked for."""
    about = answer.about
    wanted = scenario.llm.get("async_scheduling")
    # Runner V1 of a CPU has no such thing, whatever is asked.
    if kind != V1 and wanted is not None and about["async_scheduling"] != wanted:
        return f"{kind} runs with async_scheduling={about['async_scheduling']}"
    runners = about.get("runners", ())
    if len(runners) != scenario.ranks:
        return f"{kind} has {len(runners)} ranks, not {scenario.ranks}"
    for runner in runners:
        if not runner["class"].endswith(_CLASSES[kind]):
            return f"{kind} runs {runner['class']}"
        if runner.get("backend") != (BACKEND if kind == FORK else None):
            return f"{kind} runs kernels of {runner.get('backend')}"
        if kind == FORK and ("reference" in runner["sites"]) != (setting == "all-off"):
            return f"with {setting} the sites run {', '.join(runner['sites'])}"
        if kind == FORK and runner["views"] == scenario.hide_views:
            return f"{kind} has {'a' if runner['views'] else 'no'} view of host memory"
    return None


def _out_of_range(case: Case, answer: Answer, *, must_count: bool) -> str | None:
    for name, (least, most) in case.ranges.items():
        counted = (_counter(name, asked, said) for asked, said in zip(case.calls, answer.said, strict=True))
        found = [value for value in counted if value is not None]
        if not found and not must_count:
            continue  # V1 has no drafts to count
        total = sum(found)
        if total < least or (most is not None and total > most):
            return f"{name} is {total}, expected {least} to {'any' if most is None else most}"
    return None


def _counter(name: str, asked: Mapping[str, Any], said: Mapping[str, Any]) -> int | None:
    requests = said["requests"]
    if name == "cached":
        return sum(int(request["cached"] or 0) for request in requests if request is not None)
    if name == "matches":
        texts = [request["completions"][0]["text"].strip() for request in requests]
        return sum(bool(text == answer) for text, answer in zip(texts, asked["answers"], strict=True))
    value = said["counters"].get(name)
    return None if value is None else int(value)


def _tokens(answer: Answer) -> list[Any]:
    return [
        [[c["tokens"] for c in r["completions"]] for r in call["requests"] if r is not None] for call in answer.said
    ]


def _same_call(
    where: str, fork: Mapping[str, Any], upstream: Mapping[str, Any], exactly: bool, worst: list[float]
) -> None:
    """exactly: the counters, too, and what was cached; without, requests that were ended from outside are left out:
    how far they got is a matter of drafts."""
    if len(fork["requests"]) != len(upstream["requests"]):
        raise _Differs(f"{where}.requests", (), len(fork["requests"]), len(upstream["requests"]))
    for i, (ours, theirs) in enumerate(zip(fork["requests"], upstream["requests"], strict=True)):
        name = f"{where}.request{i}"
        if not exactly and (_aborted(ours) or _aborted(theirs)):
            if _aborted(ours) != _aborted(theirs):
                raise _Differs(name, (), ours, theirs)
            continue
        if ours is None or theirs is None:
            if ours != theirs:
                raise _Differs(name, (), ours, theirs)
            continue
        _same_request(name, ours, theirs, worst)
        if exactly and ours["cached"] != theirs["cached"]:
            raise _Differs(f"{name}.cached", (), ours["cached"], theirs["cached"])
    if exactly:
        _same_counters(where, fork["counters"], upstream["counters"])


def _aborted(request: Mapping[str, Any] | None) -> bool:
    return request is None or any(c["finish"] in (None, "abort") for c in request["completions"])


def _same_request(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], worst: list[float]) -> None:
    if len(ours["completions"]) != len(theirs["completions"]):
        raise _Differs(f"{name}.completions", (), len(ours["completions"]), len(theirs["completions"]))
    for n, (fork, upstream) in enumerate(zip(ours["completions"], theirs["completions"], strict=True)):
        where = f"{name}.completion{n}" if n else name
        _same_list(f"{where}.tokens", (), fork["tokens"], upstream["tokens"])
        for field in ("text", "finish", "stop"):
            if fork[field] != upstream[field]:
                raise _Differs(f"{where}.{field}", (), fork[field], upstream[field])
        _close(f"{where}.logprobs", fork["logprobs"], upstream["logprobs"], worst)
    _close(f"{name}.prompt_logprobs", ours["prompt_logprobs"], theirs["prompt_logprobs"], worst)


def _same_list(where: str, index: tuple[int, ...], ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs)):  # noqa: B905 - the lengths come last
        if a != b:
            raise _Differs(where, (*index, i), a, b)
    if len(ours) != len(theirs):
        raise _Differs(f"{where}.length", index, len(ours), len(theirs))


def _same_counters(where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for name, value in theirs.items():
        if ours.get(name) != value:
            raise _Differs(f"{where}.{name}", (), ours.get(name), value)


def _close(where: str, ours: Any, theirs: Any, worst: list[float]) -> None:
    """The same tokens at every position, and log probabilities that are close."""
    if (ours is None) != (theirs is None):
        raise _Differs(where, (), ours, theirs)
    for i, fork, upstream in _positions(where, ours or [], theirs or []):
        if sorted(fork) != sorted(upstream):
            raise _Differs(where, (i,), sorted(fork), sorted(upstream))
        for token, value in fork.items():
            error = abs(value - upstream[token])
            # Not greater, so that a NaN differs.
            if not error <= TOLERANCE and value != upstream[token]:
                raise _Differs(where, (i, token), value, upstream[token])
            if value != upstream[token]:
                worst[0] = max(worst[0], error)


def _positions(
    where: str, ours: Sequence[Any], theirs: Sequence[Any]
) -> Iterator[tuple[int, dict[int, float], dict[int, float]]]:
    if len(ours) != len(theirs):
        raise _Differs(f"{where}.length", (), len(ours), len(theirs))
    for i, (fork, upstream) in enumerate(zip(ours, theirs, strict=True)):
        if (fork is None) != (upstream is None):
            raise _Differs(where, (i,), fork, upstream)
        if fork is not None:
            yield i, dict(fork), dict(upstream)
