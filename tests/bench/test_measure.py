from __future__ import annotations

from pathlib import Path

import pytest

from kunlunfork.bench.measure import Reading, Step, Timed, in_turns
from kunlunfork.progress import Silent


def test_steps_take_turns_and_the_first_round_only_warms_up(tmp_path: Path) -> None:
    calls: list[str] = []

    def step(name: str) -> Step:
        def run(folder: Path) -> None:
            assert calls[-1] == f"before {name}"
            calls.append(name)
            (folder / name).touch()

        return Step(name, "", run, lambda folder: calls.append(f"before {name}"))

    checked: list[list[str]] = []
    timed = in_turns(
        [step("a"), step("b")], 3, tmp_path, lambda f: checked.append(sorted(p.name for p in f.iterdir())), Silent()
    )
    assert [c for c in calls if not c.startswith("before")] == ["a", "b"] * 4
    assert checked == [["a", "b"]], "of the warm-up, when all steps have run"
    assert [t.step.name for t in timed] == ["a", "b"]
    assert all(len(t.rounds) == 3 for t in timed)
    assert len(list(tmp_path.iterdir())) == 4, "each round had a new folder"


def test_an_error_ends_it(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        in_turns([Step("a", "", fail)], 3, tmp_path, lambda folder: None, Silent())


def test_work_is_counted_as_work(tmp_path: Path) -> None:
    """What a step does is in its own seconds, not in those of others; what `before` does is in neither."""

    def work(folder: Path) -> None:
        sum(i for i in range(400_000))

    quick = Step("quick", "", lambda folder: None, work)
    slow, fast = in_turns([Step("slow", "", work), quick], 1, tmp_path, lambda folder: None, Silent())
    assert slow.cpu > fast.cpu >= 0
    assert slow.rounds[0].wall > 0


def test_numbers() -> None:
    rounds = (Reading(4.0, 1.0, 2.0), Reading(1.0, 3.0, 0.0), Reading(2.0, 2.0, 2.0))
    timed = Timed(Step("a", "", lambda folder: None), Reading(99.0, 99.0, 99.0), rounds)
    assert (timed.median, timed.least, timed.cpu, timed.others) == (2.0, 1.0, 2.0, 0.5)
    blind = Timed(timed.step, Reading(9.0, 9.0, None), (Reading(9.0, 9.0, None),))
    assert blind.others is None
