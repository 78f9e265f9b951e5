"""Shards: every unit in exactly one, even, the same on every machine; together they are the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matrixkit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrixkit import CELL, CELLS

from kunlunfork.errors import ForkError
from kunlunfork.matrix import results, schedule, times
from kunlunfork.matrix.schedule import divide, estimate, learn
from kunlunfork.matrix.selection import Selection, Shard, spread

UNITS = st.lists(st.text("ab:/*", min_size=1, max_size=6), max_size=30)
SECONDS = st.dictionaries(st.text("ab:/*", min_size=1, max_size=6), st.floats(0, 1e6), max_size=30)


@given(UNITS, SECONDS, st.integers(1, 9), st.randoms())
def test_every_unit_is_in_exactly_one_share(
    units: list[str], seconds: dict[str, float], count: int, rng: object
) -> None:
    shares = divide(units, seconds, count)
    assert len(shares) == count
    assert sorted(u for share in shares for u in share) == sorted(set(units))
    rng.shuffle(units)  # type: ignore[attr-defined]
    assert divide(units, dict(reversed(seconds.items())), count) == shares


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 8))
def test_no_share_is_longer_than_the_rule_allows(spent: list[float], count: int) -> None:
    """Longest first is within 4/3 of the best that can be (Graham 1969), which is no less than either bound here."""
    seconds = {f"u{i}": s for i, s in enumerate(spent)}
    longest = max(sum(seconds[u] for u in share) for share in divide(seconds, seconds, count))
    ordered = sorted(spent, reverse=True)
    best = max(sum(spent) / count, ordered[0], sum(ordered[count - 1 : count + 1]) if len(ordered) > count else 0.0)
    assert longest <= best * 4 / 3 + 1e-6 or longest <= sum(spent) / count + ordered[0]


def test_the_longest_comes_first() -> None:
    seconds = {"a": 10.0, "b": 6.0, "c": 5.0}
    assert divide(["c", "b", "a"], seconds, 2) == [("a",), ("b", "c")]


@given(UNITS, SECONDS, st.integers(1, 9))
def test_what_nobody_measured_moves_nothing_else(units: list[str], seconds: dict[str, float], count: int) -> None:
    alone = divide(seconds, seconds, count)
    both = divide({*units, *seconds}, seconds, count)
    assert [tuple(u for u in share if u in seconds) for share in both] == alone


def test_a_unit_that_nobody_measured_is_like_its_neighbours() -> None:
    seconds = {"ops:a:f/x": 10.0, "ops:a:f/y": 30.0, "ops:b:g/x": 1.0, "step:s/x": 100.0}
    assert estimate(["ops:a:f/new"], seconds) == 20.0
    assert estimate(["ops:c:h/new"], seconds) == pytest.approx(41 / 3)
    assert estimate(["e2e:c:h/new"], seconds) == pytest.approx(141 / 4)
    assert estimate(["ops:a:f/x", "ops:a:f/y"], seconds) == 40.0
    assert estimate(["x"], {}) == 1.0


def test_upstreams_run_counts_once() -> None:
    other = replace(CELL, backend="reference", test="t2")
    assert learn([CELL, other]) == {"ops:a:f/x": 1.0}


def test_a_tests_cells_stay_together() -> None:
    tests = [{"test": f"{c}{b}", "launcher": "a:f", "case": c} for c in "xyz" for b in "12"]
    shares = spread("ops", tests, {}, 2)
    assert sorted(t["test"] for share in shares for t in share) == sorted(t["test"] for t in tests)
    for share in shares:
        assert {t["test"] for t in share} == {f"{t['case']}{b}" for t in share for b in "12"}


def test_a_cell_that_is_not_there_is_named() -> None:
    tests = [{"test": "a", "launcher": "", "case": "a"}]
    assert Selection(("a",)).choose("ops", tests) == tests
    with pytest.raises(ForkError, match="no such cell in tier ops") as e:
        Selection(("a", "b")).choose("ops", tests)
    assert e.value.details == ("b",)


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert times.read(file) == {}
    times.write(file, {"b": 1.0, "a": 2.5})
    assert times.read(file) == {"a": 2.5, "b": 1.0}
    for text in ("", "[]", '{"schema": 2, "seconds": {}}', '{"schema": 1, "seconds": {"a": -1}}',
                 '{"schema": 1, "seconds": {"a": NaN}}', '{"schema": 1, "seconds": []}', "\0"):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ForkError, match="does not hold recorded times"):
            times.read(file)
        assert times.read_or_guess(file) == {}


@pytest.mark.parametrize("recorded", [False, True])
def test_shards_together_are_the_whole(recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = matrixkit.make(tmp_path / "content")
    matrixkit.replace_engine(monkeypatch, content)
    whole = tmp_path / "whole.jsonl"
    matrixkit.start(content, matrixkit.options(whole))
    if recorded:
        seconds = schedule.learn(results.load([whole]).cells)
        del seconds["ops:a:f/case2"]
        times.write(times.recorded(content), {**seconds, "ops:gone:f/x": 0.01})
    files = []
    for index in (1, 2, 3):
        files.append(tmp_path / f"{index}.jsonl")
        # What one machine has learnt by itself must not move a cell to another shard.
        times.write(content.root / "engine" / "times.json", {"ops:a:f/case0": 100.0 * index})
        matrixkit.start(content, matrixkit.options(files[-1], shard=Shard(index, 3)))
    cells = results.load(files).cells
    assert len(cells) == CELLS
    assert sorted((c.test, c.outcome) for c in cells) == sorted(
        (c.test, c.outcome) for c in results.load([whole]).cells
    )
    assert {len(results.load([f]).cells) > 0 for f in files} == {True}
    assert {c.run.shard for c in cells} == {"1/3", "2/3", "3/3"}
