from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kunlunfork.errors import ForkError
from kunlunfork.matrix.cells import Cell, Run, read, summary

RUN = Run("0.25.1", "cpu", "ops", 7, "5e" * 32, "0f" * 32, {"torch": "2.13.0"}, "Linux x86_64, 2 cores")
CELL = Cell(
    RUN, "test_bound.py::test_bound[a:f-x-torch-off:A]", "x", "passed", (1, 2), "a:f", "torch", "launchers:f", "off:A",
    ("KUNLUN_A",), 1e-6, 0.25, 1.5e9,
)  # fmt: skip


def test_a_line_has_what_a_reader_needs() -> None:
    line = json.loads(CELL.line())
    assert line["schema"] == 1
    assert {k: line[k] for k in ("pin", "device", "tier", "seed", "overlay", "versions", "machine")} == {
        "pin": "0.25.1", "device": "cpu", "tier": "ops", "seed": 7, "overlay": "0f" * 32,
        "versions": {"torch": "2.13.0"}, "machine": "Linux x86_64, 2 cores",
    }  # fmt: skip
    assert (line["launcher"], line["case"], line["backend"], line["setting"]) == ("a:f", "x", "torch", "off:A")
    assert (line["sites"], line["off"], line["outcome"], line["error"]) == ([1, 2], ["KUNLUN_A"], "passed", 1e-6)
    assert CELL.line().endswith("}\n") and CELL.line().count("\n") == 1


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    cells = (CELL, replace(CELL, setting=None, off=None, error=None, message="two\nlines \u2028"))
    file = tmp_path / "r.jsonl"
    file.write_text("".join(cell.line() for cell in cells), encoding="utf-8")
    assert read(file) == cells


@pytest.mark.parametrize(
    "line", ["{}", "[]", "no json", CELL.line().replace('"schema": 1', '"schema": 2'),
             CELL.line().replace('"case"', '"cases"')],
)  # fmt: skip
def test_what_is_no_cell_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(CELL.line() + line.strip() + "\n")
    with pytest.raises(ForkError, match=r"r\.jsonl:2 is not a cell"):
        read(file)


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
