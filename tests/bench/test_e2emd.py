"""README's numbers of engines are those recorded last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import REPO

from kunlunfork.bench import e2emd
from kunlunfork.errors import ForkError

RESULTS = REPO / "ci" / "results" / "device.jsonl"
COMMAND = "e2emd.into(README, e2emd.text(e2emd.last(ci/results/device.jsonl)))"


def test_readme_has_the_numbers_recorded_last() -> None:
    document = (REPO / "README.md").read_text(encoding="utf-8")
    made = e2emd.text(e2emd.last(RESULTS))
    assert e2emd.into(document, made) == document, f"make it again: {COMMAND}"
    assert "Not measured on Kunlun hardware" in made


def _line(speed: int, what: str = "device e2e") -> str:
    row = {
        "variant": "upstream V2", "drafts": True, "requests": 8, "tokens/s": 1000, "range": [900, 1100], "wrong": 0,
        "ttft ms": 1.25, "tpot ms": 2.5, "tpot p95 ms": 3.0, "tpot p99 ms": 4.0,
    }  # fmt: skip
    ours = {**row, "variant": "fork torch", "tokens/s": speed}
    failed = {"variant": "fork fused", "drafts": False, "requests": 8, "error": "exit code 1"}
    machine = {"gpu": "GPU", "torch": "2", "triton": "3", "python": "3.12"}
    rest = {"date": "2026-01-02T03:04:05+00:00", "commit": "abc", "note": "median of 3"}
    return json.dumps({"what": what, "machine": machine, **rest, "rows": [row, ours, failed]})


def test_the_last_line_of_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "device.jsonl"
    file.write_text("\n".join([_line(500), _line(250), _line(1, "device rate"), ""]))
    made = e2emd.text(e2emd.last(file))
    assert "| dspark | 8 | fork torch | 250 | 0.25 | 1.2 | 2.50 | 3.00 | 4.00 | 0 |\n" in made
    assert "| none | 8 | fork fused | failed |" in made
    assert "One GPU, torch 2, Triton 3, Python 3.12, 2026-01-02, commit abc." in made
    header, _, *rows = [line for line in made.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {header.count("|")}


def test_nothing_recorded_and_no_place(tmp_path: Path) -> None:
    file = tmp_path / "device.jsonl"
    file.write_text(_line(1, "device rate"))
    with pytest.raises(ForkError, match="no numbers"):
        e2emd.last(file)
    with pytest.raises(ForkError, match="no place"):
        e2emd.into(e2emd.BEGIN + "\n", "x")
