"""The file of results: what is written is read, whatever ends the run; what is no result is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matrixkit
import pytest
from matrixkit import CELL, CELLS, FAILED, RUN, names

from kunlunfork import errors
from kunlunfork.errors import ForkError
from kunlunfork.matrix import merge, results
from kunlunfork.matrix.cells import replay
from kunlunfork.matrix.results import Writer, load

V1 = {
    "schema": 1, "pin": "0.25.1", "device": "cpu", "tier": "ops", "seed": 7, "series": "5e", "overlay": "0f",
    "versions": {"torch": "2"}, "machine": "here", "test": "t[x]", "case": "x", "outcome": "passed", "sites": [1],
    "launcher": "a:f", "backend": "torch", "ran": None, "setting": None, "off": None, "error": None, "seconds": 0.25,
    "finished": 1.5e9, "message": None,
}  # fmt: skip


def _write(path: Path, *cells: Any, append: bool = False, planned: int = 2) -> Path:
    with Writer(path, append=append) as file:
        file.head(RUN)
        file.tier("ops", planned)
        for cell in cells:
            file.cell(cell)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    odd = replace(CELL, test="t[\u2028\ud800]", setting=None, off=None, error=None, message="two\nlines", upstream=None)
    found = load([_write(tmp_path / "r.jsonl", CELL, FAILED, odd, planned=5)])
    # The command that runs a cell again is written for those that need one.
    assert found.cells == (CELL, replace(FAILED, replay=replay(FAILED)), odd)
    assert [(p.run, p.cells, p.ended) for p in found.planned] == [(RUN, 5, 3)]
    assert found.notes == ()
    assert found.cells[0].run is found.cells[1].run


def test_a_tier_that_plans_launchers_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Writer(path, append=False) as file:
        file.head(RUN)
        file.tier("upstream", 3, results.LAUNCHERS)
        for launcher, test in (("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")):
            file.cell(replace(CELL, run=replace(RUN, tier="upstream"), launcher=launcher, test=test))
    found = load([path])
    assert [(p.cells, p.ended, p.of) for p in found.planned] == [(3, 2, "launchers")]
    assert merge.merge(found, None).unfinished == (f"{path}: upstream of 0.25.1 ended after 2 of 3 files",)


def test_a_line_has_what_a_reader_needs(tmp_path: Path) -> None:
    head, tier, cell = map(json.loads, _write(tmp_path / "r.jsonl", FAILED).read_text().splitlines())
    assert (head["kind"], head["schema"], tier) == ("head", 2, {"kind": "tier", "tier": "ops", "cells": 2})
    assert {"pin", "device", "overlay", "series", "machine", "versions", "date", "command", "seed"} <= head.keys()
    assert {"tier", "launcher", "sites", "setting", "case", "outcome", "seconds"} <= cell.keys()
    assert (cell["tensor"], cell["index"]) == ("arg0.x", [1, 2])
    assert cell["replay"].startswith("kunlunfork matrix run --vllm 0.25.1 ")


def test_lines_of_version_1_are_read(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps(V1) + "\n" + json.dumps({**V1, "test": "u", "off": ["A"], "setting": "off:A"}) + "\n")
    first, second = load([file]).cells
    assert first.run is second.run
    assert (first.test, first.sites, second.off) == ("t[x]", (1,), ("A",))


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_half_a_line_at_the_end_is_dropped_and_said(cut: int, tmp_path: Path) -> None:
    file = _write(tmp_path / "r.jsonl", CELL, FAILED)
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    found = load([file])
    if cut == 1:  # only the newline is missing
        assert len(found.cells) == 2 and found.notes == ()
        return
    assert found.cells == (CELL,)
    assert found.notes == (f"{file}:4: half a line at the end, dropped",)
    # A run that goes on starts on a line of its own.
    _write(file, FAILED, append=True)
    again = load([file])
    assert names(again.cells) == names((CELL, FAILED)) and again.notes == ()


HEAD = {"kind": "head", "schema": 2, "pin": "1", "device": "cpu", "seed": 0, "series": "s", "overlay": "o",
        "versions": {}, "machine": "m"}  # fmt: skip
LINE = {"kind": "cell", **{k: V1[k] for k in V1.keys() - {"schema", "pin", "device", "seed", "series", "overlay",
                                                          "versions", "machine"}}}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "number", "found"),
    [
        ([b"\x00\xff\x80garbage\n"], 1, "decode"),
        ([b"[]\n"], 1, "not an object"),
        ([b"{}\n"], 1, "no head before it"),
        ([b"half"], 1, "Expecting value"),
        ([HEAD, {}], 2, "kind None"),
        ([b"no json\n"], 1, "Expecting value"),
        ([b"[" * 100_000 + b"\n"], 1, ""),
        ([LINE], 1, "no head before it"),
        ([HEAD, {"kind": "sum"}], 2, "kind 'sum'"),
        ([HEAD, {**LINE, "seconds": float("nan")}], 2, "seconds: nan"),
        ([HEAD, {**LINE, "seconds": -1}], 2, "seconds: -1"),
        ([HEAD, {**LINE, "seconds": True}], 2, "seconds: True"),
        ([HEAD, {**LINE, "outcome": "fine"}], 2, "outcome: 'fine'"),
        ([HEAD, {**LINE, "outcome": []}], 2, "outcome: []"),
        ([HEAD, {**LINE, "sites": ["x"]}], 2, "sites: ['x']"),
        ([HEAD, {k: LINE[k] for k in LINE if k != "test"}], 2, "no 'test'"),
        ([HEAD, {"kind": "tier", "tier": "ops", "cells": -1}], 2, "cells: -1"),
        ([{**HEAD, "versions": {"torch": 2}}], 1, "versions"),
        ([{**HEAD, "seed": "0"}], 1, "seed: '0'"),
        ([{k: V1[k] for k in V1 if k != "case"}], 1, "no 'case'"),
        ([{**V1, "seed": None}], 1, "seed: None"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_named(lines: list[Any], number: int, found: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(x if isinstance(x, bytes) else json.dumps(x).encode() + b"\n" for x in lines))
    with pytest.raises(ForkError, match=rf"r\.jsonl:{number} is not a line of results") as e:
        load([file])
    assert found in (e.value.found or "")


@pytest.mark.parametrize("schema", [0, 3, "2", None])
@pytest.mark.parametrize("line", [HEAD, V1])
def test_a_version_that_nobody_knows(schema: Any, line: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps({**line, "schema": schema}) + "\n")
    if schema is None:
        if line is V1:
            with pytest.raises(ForkError, match="is not a line of results"):
                load([file])
        return
    with pytest.raises(ForkError, match="written by another version") as e:
        load([file])
    assert e.value.found == f"schema {schema!r}"


def test_a_huge_line_is_not_read_into_memory(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    with file.open("wb") as out:
        out.truncate(1 << 40)  # a hole
    with pytest.raises(ForkError, match="1 is not a line of results") as e:
        load([file])
    assert e.value.found == f"more than {results.LIMIT} bytes in a line"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ForkError, match="cannot be read"):
            load([path])


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    file = _write(tmp_path / "r.jsonl", CELL)
    assert len(load([file, file]).cells) == 1


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ForkError, match="cannot be written"):
        Writer(tmp_path / "file" / "r.jsonl", append=False)
    with pytest.raises(ForkError, match="cannot be written") as e, Writer(Path("/dev/full"), append=False) as file:
        file.head(RUN)
    assert e.value.found == "No space left on device"


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    with Writer(file, append=False) as first:
        first.head(RUN)
        for append in (False, True):
            with pytest.raises(ForkError, match="another run writes its results"):
                Writer(file, append=append)
        first.cell(CELL)
    assert load([file]).cells == (CELL,)
    with Writer(file, append=False):
        pass
    assert file.read_bytes() == b""


# Runs of a small matrix.


def test_a_run_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = matrixkit.make(tmp_path / "content")
    matrixkit.replace_engine(monkeypatch, content)
    out = tmp_path / "r.jsonl"
    result = matrixkit.start(content, matrixkit.options(out))
    found = load([out])
    assert result.summary.counts == {"passed": CELLS - 4, "failed": 4, "error": 0, "skipped": 0}
    assert len({cell.test for cell in found.cells}) == len(found.cells) == CELLS
    assert [(p.cells, p.ended) for p in found.planned] == [(CELLS, CELLS)]
    assert len(matrixkit.ran(content)) == CELLS - 1
    bad = [cell for cell in found.cells if cell.bad]
    assert {cell.case for cell in bad} == {"case3"}
    assert {(cell.tensor, cell.index) for cell in bad} == {("arg0.x", (1, 2))}
    assert all(cell.replay and cell.test in cell.replay.replace("'", "") for cell in bad)
    # Some seconds of each unit are known now; upstream's run counts once.
    times = json.loads((content.root / "engine" / "times.json").read_text())["seconds"]
    assert 0.5 <= times["ops:a:f/case0"] < 1.0


def test_resume_runs_what_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = matrixkit.make(tmp_path / "content")
    matrixkit.replace_engine(monkeypatch, content)
    out = tmp_path / "r.jsonl"
    matrixkit.start(content, matrixkit.options(out))
    matrixkit.ran(content)
    lines = out.read_text().splitlines(keepends=True)
    # Two results are lost, one is an error that may have been its worker's.
    passed = next(i for i, line in enumerate(lines) if '"outcome": "passed"' in line and "a:f-case1-torch" in line)
    lines[passed] = lines[passed].replace('"passed"', '"error"')
    lost = [i for i, line in enumerate(lines) if "case5-torch" in line]
    out.write_text("".join(line for i, line in enumerate(lines) if i not in lost))
    result = matrixkit.start(content, matrixkit.options(out, resume=True))
    assert sorted(matrixkit.ran(content)) == ["a:f case1 torch", "a:f case5 torch", "b:<g> case5 torch"]
    assert result.resumed == CELLS - 3
    assert result.summary.counts == {"passed": CELLS - 4, "failed": 4, "error": 0, "skipped": 0}
    assert len(load([out]).planned) == 2
    # Nothing is left.
    assert matrixkit.start(content, matrixkit.options(out, resume=True)).resumed == CELLS
    assert matrixkit.ran(content) == []
    # Another overlay, seed or number of random cases: other cells.
    matrixkit.start(content, matrixkit.options(out, resume=True, seed=1))
    assert len(matrixkit.ran(content)) == CELLS - 1
    matrixkit.replace_engine(monkeypatch, content, "ff" * 32)
    assert matrixkit.start(content, matrixkit.options(out, resume=True)).resumed == 0
    assert len(matrixkit.ran(content)) == CELLS - 1


def test_resume_without_a_file_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = matrixkit.make(tmp_path / "content")
    matrixkit.replace_engine(monkeypatch, content)
    matrixkit.start(content, matrixkit.options(tmp_path / "r.jsonl", resume=True))
    assert len(load([tmp_path / "r.jsonl"]).cells) == CELLS


def test_resume_over_what_is_no_file_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = matrixkit.make(tmp_path / "content")
    matrixkit.replace_engine(monkeypatch, content)
    out = tmp_path / "precious.txt"
    out.write_text("a letter")
    with pytest.raises(ForkError):
        matrixkit.start(content, matrixkit.options(out, resume=True))
    assert out.read_text() == "a letter"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_keeps_its_cells(number: signal.Signals, tmp_path: Path) -> None:
    content = matrixkit.make(tmp_path / "content")
    (content.parity / "slow").touch()
    out = tmp_path / "r.jsonl"
    argv = [sys.executable, "-c", matrixkit.SCRIPT, str(content.root), "matrix", "run", *matrixkit.ON, "-n", "1"]
    argv += ["--repo", str(content.root), "--results", str(out)]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    deadline = time.monotonic() + 60
    while not (out.exists() and out.read_bytes().count(b'"kind": "cell"') >= 3):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    code = child.wait(30)
    assert code == (-9 if number == signal.SIGKILL else errors.INTERRUPTED)
    ended = load([out]).cells
    assert 3 <= len(ended) < CELLS
    time.sleep(1.0)  # a worker that lost its parent ends with the test that it is in
    (content.parity / "slow").unlink()
    matrixkit.ran(content)
    done = subprocess.run([*argv, "--resume", "--json"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["result"]["resumed"] == len(ended)
    assert len(matrixkit.ran(content)) == CELLS - 1 - sum("test_site" in cell.test for cell in ended)
    assert len(load([out]).cells) == CELLS
