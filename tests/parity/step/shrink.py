# SPDX-License-Identifier: Apache-2.0
"""Makes a failing trace small: delta debugging over what arrives and happens, then each request made simpler.

Neither torch nor vLLM here: whether a trace still fails is for the caller to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from step.trace import Arrival, Trace, dumps

T = TypeVar("T")
# The step in which a trace fails as the first one did, or None.
Fails = Callable[[Trace], int | None]


class Shrinker:
    """`trace` is the smallest that failed so far; it fails in its last step. tries: how many were asked for."""

    def __init__(self, trace: Trace, step: int, fails: Fails, seconds: float) -> None:
        self.trace = _until(trace, step)
        self.fails = fails
        self.deadline = time.monotonic() + seconds
        self.known: dict[str, bool] = {}
        self.tries = 0

    def run(self) -> Trace:
        """Shrink until nothing gets smaller or the time is over."""
        before = None
        while before != self.trace and not self._late():
            before = self.trace
            self._list("arrivals")
            self._list("events")
            self._closer()
            self._simpler()
        return self.trace

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _try(self, candidate: Trace) -> bool:
        """Whether it fails still; if so it is the trace now."""
        if candidate == self.trace or self._late():
            return False
        key = dumps(candidate)
        if key in self.known:
            return False
        self.tries += 1
        step = self.fails(candidate)
        self.known[key] = step is not None
        if step is None:
            return False
        self.trace = _until(candidate, step)
        return True

    def _list(self, name: str) -> None:
        """Leave out halves, quarters ... of the arrivals or events, then single ones."""
        size = max(1, len(getattr(self.trace, name)) // 2)
        while True:
            start = 0
            while start < len(items := getattr(self.trace, name)):
                kept = items[:start] + items[start + size :]
                if not self._try(replace(self.trace, **{name: kept})):
                    start += size
            if size == 1:
                return
            size //= 2

    def _closer(self) -> None:
        """Take out steps before which nothing happens."""
        step = 0
        while step < self.trace.steps:
            later = replace(
                self.trace,
                steps=self.trace.steps - 1,
                arrivals=tuple(_earlier(a, step) for a in self.trace.arrivals),
                events=tuple(_earlier(e, step) for e in self.trace.events),
            )
            if later.steps < 1 or not self._try(later):
                step += 1

    def _simpler(self) -> None:
        i = 0
        while i < len(self.trace.arrivals):
            # From the simpler request on, until none is simpler still; a failure may come earlier and cut the list.
            if not any(self._with(i, change) for change in _simplifications(self.trace.arrivals[i])):
                i += 1
        self._try(replace(self.trace, shape=replace(self.trace.shape, buckets=())))

    def _with(self, i: int, arrival: Arrival) -> bool:
        arrivals = (*self.trace.arrivals[:i], arrival, *self.trace.arrivals[i + 1 :])
        return self._try(replace(self.trace, arrivals=arrivals))


def _until(trace: Trace, step: int) -> Trace:
    """The trace with nothing behind `step`."""
    return replace(
        trace,
        steps=step + 1,
        arrivals=tuple(a for a in trace.arrivals if a.step <= step),
        events=tuple(e for e in trace.events if e.step <= step),
    )


def _earlier(item: T, step: int) -> T:
    return replace(item, step=item.step - 1) if item.step > step else item  # type: ignore[type-var, attr-defined]


def _simplifications(arrival: Arrival) -> Iterator[Arrival]:
    """Requests with less to them, the boldest first."""
    plain = {"temperature": 0.0}
    yield replace(arrival, params=plain, stop=(), grammar=False, shares=None, shared=0)
    yield replace(arrival, params=plain)
    yield replace(arrival, stop=(), grammar=False, shares=None, shared=0)
    yield replace(arrival, params={**arrival.params, **plain})
    for name in arrival.params:
        if name != "temperature":
            yield replace(arrival, params={k: v for k, v in arrival.params.items() if k != name})
    yield from (replace(arrival, prompt=n) for n in _smaller(arrival.prompt))
    yield from (replace(arrival, max_tokens=n) for n in _smaller(arrival.max_tokens))


def _smaller(n: int) -> Sequence[int]:
    return sorted({1, n // 2, n * 3 // 4} - {0, n})
