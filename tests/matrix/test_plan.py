"""`kunlunfork matrix plan`: shards that any machine works out alike, from what was recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matrixkit import CELL, RUN

from kunlunfork import cli, errors
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import plan, selection, times
from kunlunfork.matrix.results import Writer

SECONDS = {**{f"ops:a:f/{i}": 1.0 + i for i in range(10)}, "step:s/x": 50.0}


def _run(root: Path, *args: object) -> int:
    return cli.run(["matrix", "plan", *map(str, args), "--repo", str(root)])


@pytest.fixture
def clone(tmp_path: Path, content: Content) -> Path:
    root = tmp_path / "clone"
    (root / "ci").mkdir(parents=True)
    for name in ("patches", "overlay"):
        (root / name).symlink_to(content.root / name)
    times.write(root / "ci" / "results" / "times.json", SECONDS)
    return root


def test_a_plan_has_every_unit_once() -> None:
    found = plan.plan(SECONDS, ("ops", "step"), 3)
    assert sorted(u for p in found for u in p.units) == sorted(SECONDS)
    assert [str(p.shard) for p in found] == ["1/3", "2/3", "3/3"]
    # One unit is half of all; the others share the rest.
    assert sorted(p.seconds for p in found) == [27.0, 28.0, 50.0]
    ops = plan.plan(SECONDS, ("ops",), 3)
    assert sorted(p.seconds for p in ops) == [0.0, 27.0, 28.0]


def test_the_plan_is_what_the_shards_run() -> None:
    tests = [{"test": f"t{i}{b}", "launcher": "a:f", "case": str(i)} for i in range(10) for b in "ab"]
    for planned in plan.plan(SECONDS, ("ops",), 3):
        chosen = selection.Selection((), planned.shard, SECONDS).choose("ops", tests)
        assert {f"ops:a:f/{t['case']}" for t in chosen} == set(planned.units)
        assert len(chosen) == 2 * len(planned.units)
        # What -k leaves out moves nothing.
        assert selection.Selection((), planned.shard, SECONDS).choose("ops", tests[:6]) == [
            t for t in tests[:6] if t in chosen
        ]


def test_nothing_recorded() -> None:
    with pytest.raises(ForkError, match="no times are recorded of e2e"):
        plan.plan(SECONDS, ("e2e",), 2)


def test_formats(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(clone, "--shards", 2, "--format", "github") == errors.OK
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    rows = json.loads(out)["include"]
    assert [row["shard"] for row in rows] == ["1/2", "2/2"]
    assert _run(clone, "--shards", 2, "--format", "json") == errors.OK
    body = json.loads(capsys.readouterr().out)
    assert [s["shard"] for s in body["shards"]] == ["1/2", "2/2"]
    assert sum(len(s["names"]) for s in body["shards"]) == 10
    assert _run(clone, "--shards", 2) == errors.OK
    assert "1/2" in capsys.readouterr().out
    assert _run(clone, "--shards", 2, "--json", "--tier", "ops,step") == errors.OK
    assert json.loads(capsys.readouterr().out)["result"]["longest"] == 53.0


def test_more_shards_than_units(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(clone, "--shards", 50, "--format", "json") == errors.OK
    assert len(json.loads(capsys.readouterr().out)["shards"]) == 50


@pytest.mark.parametrize("line", ["", "--shards 0", "--shards 1000000", "--shards 2 --format xml"])
def test_wrong_usage(line: str, clone: Path) -> None:
    assert _run(clone, *line.split()) == errors.USAGE


def test_times_are_learnt_from_results(clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    with Writer(file, append=False) as out:
        out.head(RUN)
        out.cell(CELL)
        out.cell(replace(CELL, test="e", case="e", outcome="error"))
    assert _run(clone, "--learn", file, "--json") == errors.OK
    assert json.loads(capsys.readouterr().out)["result"]["learnt"] == 1
    # Other tiers stay, what the tier has no more goes.
    assert times.read(clone / "ci" / "results" / "times.json") == {"ops:a:f/x": 0.75, "step:s/x": 50.0}


def test_times_that_are_none(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "ci" / "results" / "times.json").write_bytes(b"\x00\xff")
    assert _run(clone, "--shards", 2) == errors.USER
    assert "does not hold recorded times" in capsys.readouterr().err
