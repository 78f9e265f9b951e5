from __future__ import annotations

from dataclasses import replace

import pytest
from step.generate import SCENARIOS, generate
from step.shrink import Shrinker
from step.trace import PREEMPT, Arrival, Event, Shape, Trace
from stepkit import play

LONG = 1000.0


def _first(trace: Trace, request: int) -> int | None:
    """The step in which a request comes back after preemption."""
    for planned in play(trace)[0]:
        if any(n.request == request and len(n.prefill) > len(n.prompt) for n in planned.new):
            return planned.step
    return None


def _some_request(trace: Trace) -> tuple[Trace, int] | None:
    return next(((trace, a.request) for a in trace.arrivals if _first(trace, a.request) is not None), None)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_left_that_it_does_not_take(scenario: str) -> None:
    trace, wanted = next(filter(None, (_some_request(generate(scenario, seed, 100)) for seed in range(9))))
    step = _first(trace, wanted)
    assert step is not None
    shrinker = Shrinker(trace, step, lambda t: _first(t, wanted), LONG)
    small = shrinker.run()
    assert _first(small, wanted) == small.steps - 1
    # Nothing can be left out.
    for name in ("arrivals", "events"):
        items = getattr(small, name)
        for k in range(len(items)):
            assert _first(replace(small, **{name: items[:k] + items[k + 1 :]}), wanted) is None
    assert all(set(a.params) == {"temperature"} for a in small.arrivals)
    assert len(small.arrivals) < len(trace.arrivals) / 2 and small.steps <= step + 1
    assert shrinker.tries < 500


def test_what_it_takes_stays() -> None:
    def fails(trace: Trace) -> int | None:
        # Two requests that meet, one with a penalty, and an event.
        ids = {a.request: a for a in trace.arrivals}
        meets = {3, 7} <= ids.keys() and "presence_penalty" in ids[7].params
        return max(ids[3].step, ids[7].step) if meets and any(e.request == 3 for e in trace.events) else None

    arrivals = tuple(Arrival(i, i, 9, 9, {"temperature": 0.7, "presence_penalty": 1.0, "top_k": 3}) for i in range(20))
    events = tuple(Event(i, PREEMPT, i % 5) for i in range(20))
    trace = Trace("by hand", 0, 20, Shape(), arrivals, events)
    small = Shrinker(trace, 7, fails, LONG).run()
    assert [a.request for a in small.arrivals] == [3, 7]
    assert [e.request for e in small.events] == [3]
    assert small.arrivals[1].params == {"temperature": 0.0, "presence_penalty": 1.0}


def test_what_is_behind_the_failure_goes_first() -> None:
    asked: list[Trace] = []

    def fails(trace: Trace) -> int | None:
        asked.append(trace)
        return None

    trace = generate("plain", 0, 50)
    small = Shrinker(trace, 9, fails, LONG).run()
    assert small.steps == 10 and max(a.step for a in small.arrivals) <= 9
    assert asked and all(t.steps <= 10 for t in asked)
    # Nothing is asked for twice.
    assert len(set(map(repr, asked))) == len(asked)


def test_it_ends_when_the_time_is_over() -> None:
    trace = generate("plain", 0, 50)
    shrinker = Shrinker(trace, 9, lambda t: 0, -1.0)
    assert shrinker.run() == replace(shrinker.trace) and shrinker.tries == 0
