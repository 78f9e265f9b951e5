from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from step.generate import SCENARIOS, generate
from step.schedule import Planned, Schedule
from step.trace import ABORT, PREEMPT, RESET, Arrival, Event, Shape, Trace
from stepkit import Worker, play

STEPS = 400


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_worker_can_take_every_step(scenario: str, seed: int) -> None:
    steps, _, _ = play(generate(scenario, seed, STEPS))
    busy = [s for s in steps if s.scheduled]
    assert len(busy) > STEPS // 2
    # Rows are used again and again.
    assert len({n.request for s in steps for n in s.new}) > 10 * SCENARIOS[scenario].max_reqs


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_any_part_of_a_trace_is_a_trace(scenario: str) -> None:
    whole, rng = generate(scenario, 1, 120), Random(scenario)
    for _ in range(20):
        keep = rng.choice((0.1, 0.5, 0.9))
        play(
            replace(
                whole,
                arrivals=tuple(a for a in whole.arrivals if rng.random() < keep),
                events=tuple(e for e in whole.events if rng.random() < keep),
            )
        )


def test_what_is_hard_happens() -> None:
    seen: dict[str, set[str]] = {}
    for scenario in SCENARIOS:
        found = seen.setdefault(scenario, set())
        made_room = 0
        for seed in range(4):
            _, worker, schedule = play(generate(scenario, seed, STEPS))
            found |= worker.seen
            made_room += schedule.made_room
        assert made_room > 3
    everywhere = {"back with output", "chunk of a prompt", "masks"}
    for scenario, found in seen.items():
        assert everywhere <= found
        assert ("some drafts" in found) == bool(SCENARIOS[scenario].drafts)
        assert ("shares blocks" in found) == (len(SCENARIOS[scenario].groups) == 1)
    assert "nothing but ends" in seen["plain"]
    assert "padded to a uniform batch" in seen["drafts"]
    assert "back in the step of its preemption" in seen["plain"] & seen["overlapped"]


def test_equal_seeds_make_equal_steps() -> None:
    assert play(generate("drafts", 5, 80))[0] == play(generate("drafts", 5, 80))[0]
    assert generate("drafts", 5, 80) != generate("drafts", 6, 80)
    # The same on every machine and in every version.
    first = generate("plain", 0, 40).arrivals[0]
    assert (first.step, first.prompt, first.max_tokens) == FIRST


FIRST = (0, 14, 2)


def _trace(*arrivals: Arrival, events: tuple[Event, ...] = (), steps: int = 12, **shape: object) -> Trace:
    return Trace("by hand", 0, steps, Shape(**shape), arrivals, events)  # type: ignore[arg-type]


def _requests(steps: list[Planned]) -> list[list[int]]:
    return [list(s.scheduled) for s in steps]


def test_a_prompt_is_computed_in_chunks_and_then_token_by_token() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 70, 3), budget=32, steps=6))
    assert [s.tokens for s in steps] == [32, 32, 6, 1, 1, 0]
    assert [bool(s.new) for s in steps] == [True, False, False, False, False, False]
    assert [list(s.finished) for s in steps] == [[], [], [], [], [], [0]]


def test_with_overlap_an_end_is_known_a_step_late() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 4, 9, stop=tuple(range(61))), overlapped=True, steps=4))
    # Its first token ends it; by then it is scheduled once more.
    assert [s.tokens for s in steps] == [4, 1, 0, 0]
    assert [list(s.finished) for s in steps] == [[], [], [0], []]


def test_with_overlap_the_last_token_is_not_scheduled_twice() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 4, 2), overlapped=True, steps=4))
    assert [s.tokens for s in steps] == [4, 1, 0, 0]


def test_preempted_it_comes_back_as_a_new_request_with_its_output() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 5, 20), events=(Event(3, PREEMPT, 0),), steps=6))
    assert _requests(steps) == [[0], [0], [0], [], [0], [0]]
    assert steps[3].preempted == {0} and not steps[3].finished
    (back,) = steps[4].new
    assert (len(back.prompt), len(back.prefill), back.computed) == (5, 8, 0)


def test_reset_it_may_come_back_at_once() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 5, 20), events=(Event(3, RESET),), steps=5))
    assert steps[3].preempted == {0} and [n.request for n in steps[3].new] == [0]


def test_reset_with_overlap_discards_the_output_under_way() -> None:
    trace = _trace(Arrival(0, 0, 5, 20), events=(Event(2, RESET),), steps=5, overlapped=True)
    schedule, worker = Schedule(trace), Worker(trace)
    steps = []
    for _ in range(4):
        planned = schedule.plan()
        steps.append(planned)
        schedule.ran(planned, worker.take(planned))
    (back,) = steps[2].new
    # The token of step 0 is known, that of step 1 is under way and lost.
    assert len(back.prefill) == 6
    assert len(schedule.live[0].tokens) == 7


def test_without_blocks_the_last_one_makes_room() -> None:
    arrivals = [Arrival(i, i, 30, 40) for i in range(3)]
    steps, _, schedule = play(_trace(*arrivals, blocks=8, steps=60))
    assert schedule.made_room > 0
    first = next(s for s in steps if s.preempted)
    assert 0 not in first.preempted and 0 in first.scheduled


def test_an_abort_reaches_a_request_that_waits() -> None:
    arrivals = [Arrival(i, 0, 4, 9) for i in range(3)]
    steps, _, _ = play(_trace(*arrivals, events=(Event(2, ABORT, 2),), max_reqs=2, steps=4))
    assert steps[2].finished == {2}
    assert all(2 not in s.scheduled for s in steps)


def test_blocks_of_a_prompt_are_shared_once_they_are_computed() -> None:
    arrivals = (Arrival(0, 0, 40, 9), Arrival(1, 2, 3, 9, shares=0, shared=35))
    steps, _, _ = play(_trace(*arrivals, steps=4))
    (one,), (two,) = steps[0].new, steps[2].new
    assert two.computed == 32 and two.blocks[0][:2] == one.blocks[0][:2]


def test_drafts_are_scheduled_from_the_second_token_on() -> None:
    steps, _, _ = play(_trace(Arrival(0, 0, 4, 30), drafts=3, steps=3))
    assert [s.tokens for s in steps] == [4, 4, 4]
    assert [len(s.drafts.get(0, ())) for s in steps] == [0, 3, 3]
