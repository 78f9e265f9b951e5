from __future__ import annotations

import json

from kunlunfork.bench import report
from kunlunfork.bench.measure import Reading, Step, Timed
from kunlunfork.bench.report import Target


def _timed(name: str, *walls: float, others: float | None = 0.0) -> Timed:
    rounds = tuple(Reading(w, w / 2, others) for w in walls)
    return Timed(Step(name, f"what {name} is", lambda folder: None), Reading(50.0, 50.0, None), rounds)


def test_medians_decide() -> None:
    timed = [_timed("own", 3.0, 9.0, 2.0), _timed("other", 2.0, 1.0, 7.0)]
    targets = (Target("own", 1.5, "other"), Target("own", 2.9), Target("own", 3.0))
    ratio, missed, met = report.judge(timed, targets)
    assert (ratio.value, ratio.least, ratio.met) == (1.5, 2.0, True)
    assert (missed.value, missed.met) == (3.0, False)
    assert met.met


def test_what_was_not_measured_is_not_judged() -> None:
    timed = [_timed("own", 1.0)]
    assert report.judge(timed, (Target("own", 1.0, "quilt"), Target("quilt", 1.0))) == ()
    assert report.ratios(timed, (("own", "quilt"), ("own", "own"))) == {"own / own": 1.0}


def test_the_report_keeps_every_number() -> None:
    names = {t.name for t in report.TARGETS} | {t.against for t in report.TARGETS if t.against}
    timed = [_timed(name, 0.123456, 0.1, others=None) for name in sorted(names)]
    verdicts = report.judge(timed)
    body = json.loads(json.dumps(report.as_json(timed, verdicts, {"date": "today"})))
    assert body["date"] == "today"
    assert body["rounds"] == 2
    assert "page cache" in body["page_cache"]
    for step in body["steps"]:
        assert [r["wall"] for r in step["all"]] == [0.1235, 0.1]
        assert step["warm_up"] == {"wall": 50.0, "cpu": 50.0, "others": None}
        assert (step["median"], step["min"], step["others_busy"]) == (0.1117, 0.1, None)
    assert [(t["name"], t["limit"], t["unit"]) for t in body["targets"]] == [
        ("new / worktree add", 1.5, "ratio"),
        ("in place", 1.0, "s"),
        ("import / tar", 2.0, "ratio"),
        ("help", 0.2, "s"),
    ]
    head, rows = report.targets_table(verdicts, {"a / b": 2.0})
    assert {len(row) for row in rows} == {len(head)}
    assert [row[-1] for row in rows] == ["met", "met", "met", "met", ""]
    head, rows = report.steps_table(timed)
    assert {len(row) for row in rows} == {len(head)}
