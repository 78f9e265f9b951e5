from __future__ import annotations

import shlex
from dataclasses import replace

import advice

from kunlunfork.matrix.cells import Cell, Run, replay, summary

RUN = Run("0.25.1", "cpu", "ops", 7, "5e" * 32, "0f" * 32, {"torch": "2.13.0"}, "Linux x86_64, 2 cores")
CELL = Cell(
    RUN, "test_bound.py::test_bound[a:f-x-torch-off:A]", "x", "passed", (1, 2), "a:f", "torch", "launchers:f", "off:A",
    ("KUNLUN_A",), 1e-6, 0.25, 1.5e9,
)  # fmt: skip


def test_replay_is_a_command_that_names_the_cell() -> None:
    for setting, mode in (("off:A", "each"), ("off:A,B", "full"), ("all-on", "all-on"), ("all-off", "all-off")):
        words = shlex.split(replay(replace(CELL, setting=setting, run=replace(RUN, random=3))))
        assert words[:3] == ["kunlunfork", "matrix", "run"]
        assert dict(zip(words[3::2], words[4::2], strict=True)) == {
            "--vllm": "0.25.1", "--device": "cpu", "--tier": "ops", "--switches": mode, "--backend": "torch",
            "--random": "3", "--seed": "7", "--cell": CELL.test,
        }  # fmt: skip
    advice.check(replay(replace(CELL, test="t.py::x[$(rm -rf ~);'\"<b>]")))
    step = replace(CELL, run=replace(RUN, tier="step", steps=200))
    assert "--tier step" in replay(step) and "--steps 200" in replay(step)
    assert "--steps" not in replay(replace(CELL, run=replace(RUN, steps=200)))
    # A rule of the fork has no setting and no backend.
    assert "--backend" not in replay(replace(CELL, setting=None, backend=None))


def test_summary_counts_by_launcher() -> None:
    failed = replace(CELL, launcher="b:g", sites=(0,), case="y", outcome="failed", error=None, seconds=1.0)
    skipped = replace(CELL, outcome="skipped", case="z", error=3e-6)
    rule = replace(CELL, launcher="", sites=(), outcome="error")
    found = summary([CELL, rule, failed, skipped])
    assert found.counts == {"passed": 1, "failed": 1, "error": 1, "skipped": 1}
    assert [(r.launcher, r.cases, r.cells, r.bad) for r in found.rows] == [
        ("b:g", 1, 1, 1), ("a:f", 2, 2, 0), ("", 1, 1, 1),
    ]  # fmt: skip
    assert found.rows[1].error == 3e-6
    assert found.bad == (rule, failed)
    assert not found.ok and summary([CELL, skipped]).ok
