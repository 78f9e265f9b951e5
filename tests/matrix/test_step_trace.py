from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from step import trace
from step.generate import SCENARIOS, generate
from step.trace import Trace, TraceError, dumps, loads


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_trace_survives_its_file(scenario: str, tmp_path: Path) -> None:
    made = generate(scenario, 3, 60)
    path = tmp_path / "t.json"
    path.write_text(dumps(made, {"found": "x"}), encoding="utf-8")
    assert trace.read(path) == made
    assert json.loads(path.read_text(encoding="utf-8"))["found"] == "x"


def _broken(made: Trace, **change: object) -> str:
    return json.dumps(json.loads(dumps(made)) | change)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "not a trace"),
        ("{}", "'format'"),
        (_broken(generate("plain", 0, 5), format=2), "format 2, expected 1"),
        (_broken(generate("plain", 0, 5), shape={"nonsense": 1}), "nonsense"),
        (_broken(generate("plain", 0, 5), events=[{"step": 1, "kind": "tea"}]), "tea"),
        (_broken(generate("plain", 0, 5), arrivals=[{"step": 1}]), "'stop'"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        loads(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        trace.read(tmp_path / "nowhere.json")


def test_it_is_written_one_arrival_a_line() -> None:
    made = generate("plain", 0, 30)
    lines = dumps(made).splitlines()
    assert sum('"max_tokens"' in line for line in lines) == len(made.arrivals)
    assert loads(dumps(replace(made, arrivals=(), events=()))).arrivals == ()
