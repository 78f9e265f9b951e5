"""Several files as one: stale ones go, doubles count once, what is lost is said; and how they stand to earlier ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matrixkit import CELL, FAILED, RUN, names

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import merge, records, report, results, trend
from kunlunfork.matrix.cells import Cell
from kunlunfork.matrix.results import Loaded, Planned

ERROR = replace(CELL, outcome="error")
LATER = replace(RUN, date="2026-12-01T00:00:00+00:00")


def _merged(*cells: Cell, planned: tuple[Planned, ...] = ()) -> merge.Merged:
    return merge.merge(Loaded(cells, planned), None)


def test_another_overlay_series_or_pin_is_stale() -> None:
    other = [replace(CELL, run=replace(RUN, **{name: "ff" * 32})) for name in ("overlay", "series", "pin")]
    hashes = {"0.25.1": (RUN.series, RUN.overlay)}
    found = merge.merge(Loaded((CELL, *other, FAILED)), hashes.get)
    assert found.cells == (CELL, FAILED)
    assert len(found.notes) == 3 and all(note.startswith("stale, dropped: 1 cell of ") for note in found.notes)
    assert "no pin" in " ".join(found.notes)
    assert len(merge.merge(Loaded((CELL, *other)), None).cells) == 4


def test_hashes_are_those_that_apply_would_write(content: Content) -> None:
    from kunlunfork import fork

    find = merge.hashes_of(content)
    loaded = fork.load(content, "0.25.1")
    assert find("0.25.1") == (loaded.series_hash, loaded.overlay_hash)
    assert find("9.9.9") is None and find("<script>") is None


@pytest.mark.parametrize(
    ("outcomes", "counts", "twice"),
    [
        (("passed", "passed"), "passed", False),
        (("passed", "failed"), "failed", True),
        (("failed", "passed"), "failed", True),
        (("error", "passed"), "passed", False),
        (("passed", "error"), "passed", False),
        (("error", "failed", "passed"), "failed", True),
        (("skipped", "passed"), "passed", True),
        (("error", "error"), "error", False),
    ],
)
def test_the_same_cell_twice(outcomes: tuple[str, ...], counts: str, twice: bool) -> None:
    found = _merged(*(replace(CELL, outcome=o, run=replace(RUN, machine=str(i))) for i, o in enumerate(outcomes)))
    assert [c.outcome for c in found.cells] == [counts]
    assert bool(found.twice) == twice
    assert found.notes
    if twice:
        assert set(found.twice[0].outcomes) == set(outcomes) - {"error"}
        assert not report.make(found, None).ok


def test_other_inputs_are_another_cell() -> None:
    found = _merged(CELL, replace(FAILED, test=CELL.test, run=replace(RUN, seed=8)))
    assert len(found.cells) == 2 and not found.twice


def test_a_run_that_ended_early_is_said_until_it_is_finished() -> None:
    half = Planned(RUN, "r.jsonl", 10, 3)
    assert _merged(CELL, planned=(half,)).unfinished == ("r.jsonl: ops of 0.25.1 ended after 3 of 10 cells",)
    assert _merged(CELL, planned=(half, replace(half, run=LATER, cells=7, ended=7))).unfinished == ()
    assert not report.make(_merged(CELL, planned=(half,)), None).ok


def test_shards_that_are_missing_are_named() -> None:
    cells = [replace(CELL, test=str(i), run=replace(RUN, shard=f"{i}/4")) for i in (1, 3)]
    assert _merged(*cells).notes == ("0.25.1 on cpu: no cells of shard 2, 4 of 4",)
    huge = replace(CELL, run=replace(RUN, shard="1/99999999999"))
    assert _merged(huge).notes == ()


def test_trend() -> None:
    def named(test: str, outcome: str, seconds: float = 0.1, launcher: str = "a:f") -> Cell:
        return replace(CELL, test=test, outcome=outcome, seconds=seconds, launcher=launcher)

    slow, quick = named("slow", "passed", 1.0, "s:s"), named("quick", "passed", 0.01, "q:q")
    before = [named("same", "passed"), named("breaks", "passed"), named("mends", "failed"), named("bad", "failed")]
    before += [named("gone", "passed"), slow, quick]
    now = [named("same", "passed"), named("breaks", "error"), named("mends", "passed"), named("bad", "failed")]
    now += [named("new", "failed"), replace(slow, seconds=2.0), replace(quick, seconds=0.05)]
    found = trend.compare(now, before)
    assert names(found.failing) == ["breaks", "new"]
    assert names(found.mended) == ["mends"]
    assert names(found.missing) == ["gone"]
    assert found.new == 1
    # A launcher that takes milliseconds is slower by chance.
    assert [(s.launcher, s.cells, s.before, s.now) for s in found.slower] == [("s:s", 1, 1.0, 2.0)]


def test_a_baseline_of_another_pin_is_said() -> None:
    found = trend.compare([replace(FAILED, run=replace(RUN, pin="0.26.0"))], [replace(FAILED, outcome="passed")])
    assert len(found.failing) == 1 and found.missing == ()
    assert found.notes == ("the baseline is of 0.25.1, the results are of 0.26.0",)
    # Where the baseline has the pin, others of it are another matter.
    both = [CELL, replace(CELL, run=replace(RUN, pin="0.26.0"))]
    assert trend.compare([CELL], both).missing == (both[1],)


def test_a_record_says_what_its_cells_say(tmp_path: Path) -> None:
    cells = [CELL, FAILED, replace(CELL, test="r", launcher="", sites=(), setting=None, off=None, outcome="skipped")]
    line = records.lines(cells)[0]
    assert (line["what"], line["counts"]) == ("matrix", {"passed": 1, "failed": 1, "skipped": 1})
    file = tmp_path / "matrix.jsonl"
    file.write_text(json.dumps(line) + "\n")
    loaded = results.load([file])
    one = report.make(merge.merge(loaded, None), None)
    all_ = report.make(_merged(*cells), None)
    assert (one.total, one.failing) == (all_.total, all_.failing) == (3, 1)
    assert [(r.launcher, r.cells, r.bad) for r in one.groups[0].rows] == [("a:f", 2, 1), ("", 1, 0)]
    assert one.groups[0].settings == all_.groups[0].settings == ("off:A", None)
    # The newest line of a tier counts; where there are cells, they do.
    file.write_text(json.dumps(line) + "\n" + json.dumps({**line, "launchers": line["launchers"][:1]}) + "\n")
    assert report.make(merge.merge(results.load([file]), None), None).total == 2
    with_cells = merge.merge(replace(results.load([file]), cells=(CELL,)), None)
    assert report.make(with_cells, None).total == 1


def test_a_record_names_no_folder_of_the_machine() -> None:
    words = (
        "kunlunfork",
        "matrix",
        "run",
        "--repo",
        "/home/me/x",
        "--results=/tmp/a b/r.jsonl",
        "--out",
        "../../r",
        "-k",
        "a/b",
    )
    line = records.lines([replace(CELL, run=replace(RUN, command=words))])[0]
    assert line["command"] == [
        "kunlunfork",
        "matrix",
        "run",
        "--repo",
        "x",
        "--results=r.jsonl",
        "--out",
        "r",
        "-k",
        "a/b",
    ]


def test_what_was_recorded_here_can_be_read(content: Content) -> None:
    found = results.load([content.root / "ci" / "results" / "matrix.jsonl"]).records
    assert found and all(r.cells for r in found)


@pytest.mark.parametrize("change", [{"schema": 3}, {"launchers": [{}]}, {"launchers": None}, {"pin": 1},
                                    {"launchers": [{"launcher": "a", "sites": ["x"], "settings": [], "error": 0}]},
                                    {"versions": []}])  # fmt: skip
def test_a_record_that_is_none(change: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "matrix.jsonl"
    file.write_text(json.dumps({**records.lines([CELL])[0], **change}) + "\n")
    with pytest.raises(ForkError, match="is not a line of results"):
        results.load([file])


def test_settings_are_in_an_order_for_people() -> None:
    some = ["all-off", "off:B", None, "off:A,B", "all-on", "off:A"]
    assert sorted(some, key=records.setting_order) == ["all-on", "off:A", "off:B", "off:A,B", "all-off", None]
