"""`kunlunfork matrix` from its command line to its exit code; what it runs is replaced."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import REPO

from kunlunfork import cli, errors
from kunlunfork.cache import Cache
from kunlunfork.commands import matrix as command
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import environment, ops, run, selftest, settings, steps
from kunlunfork.matrix.cells import Cell, Run, summary
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.faults import Fault
from kunlunfork.matrix.run import Options, Result
from kunlunfork.progress import Silent

SHARED = Run("0.25.1", "cpu", "ops", 0, "5e" * 32, "0f" * 32, {}, "here")
GOOD = Cell(SHARED, "t.py::test_bound[a:f-x]", "x", "passed", (1,), "a:f", "torch", "launchers:f", "all-on", ())
BAD = replace(GOOD, outcome="failed", message="harness.Mismatch: a:f, x\n  arg0: 1 of 2 differ; more")


def test_the_choices_are_those_of_the_modules() -> None:
    assert command.MODES == settings.MODES
    assert command.BACKENDS == ops.BACKENDS
    assert run.NAMES == command.TIERS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `matrix run` was asked for; `cells` is what it finds."""
    seen: dict[str, Any] = {"cells": (GOOD,)}

    def fake(content: Any, cache: Any, options: Options, progress: Any) -> Result:
        seen["options"] = options
        return Result(Path("/r.jsonl"), ("all-on",), "0f" * 32, {"torch": "2"}, summary(seen["cells"]))

    monkeypatch.setattr(run, "run", fake)
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    return seen


def test_run_says_where_the_results_are(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    line = "matrix run --vllm 0.25.1 --device cpu --tier ops --switches pairs --backend torch -k x -n 3 --random 2"
    assert cli.run([*line.split(), "--seed", "9", "--out", "/o.jsonl", "--python", "/p"]) == errors.OK
    assert asked["options"] == Options(
        "0.25.1", "cpu", ("ops",), "pairs", ("torch",), "x", 3, 2, 9, Path("/o.jsonl"), Path("/p"),
        command=asked["options"].command,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert "1 passed" in out and "/r.jsonl" in out and "a:f" in out


def test_run_without_options_takes_the_newest_pin_each_setting_and_all_backends(
    asked: dict[str, Any], content: Content
) -> None:
    assert cli.run(["matrix", "run"]) == errors.OK
    found = asked["options"]
    assert (found.version, found.mode, found.backends) == (content.newest(), "each", ("torch", "reference", "fused"))
    assert found.processes >= 1 and found.out is None


def test_tiers_are_named_with_commas_between(asked: dict[str, Any]) -> None:
    assert cli.run(["matrix", "run", "--tier", "step, ops", "--steps", "500"]) == errors.OK
    assert (asked["options"].tiers, asked["options"].steps) == (("step", "ops"), 500)


def test_run_of_a_shard_or_of_cells(asked: dict[str, Any]) -> None:
    line = "matrix run --shard 2/3 --cell a --cell b[x,y] --results /o.jsonl --resume"
    assert cli.run(line.split()) == errors.OK
    found = asked["options"]
    assert (str(found.shard), found.cells, found.resume) == ("2/3", ("a", "b[x,y]"), True)
    assert found.command[:1] == ("kunlunfork",)


def test_failures_are_listed_once_each(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    asked["cells"] = (GOOD, BAD, replace(BAD, test="t.py::test_bound[a:f-y]", case="y"))
    assert cli.run(["matrix", "run"]) == errors.USER
    out = capsys.readouterr().out
    assert "2 of 3 cells did not pass" in out
    assert "failed in a:f: test_bound[a:f-x] and 1 more: arg0: 1 of 2 differ; more" in out
    assert cli.run(["matrix", "run", "--json"]) == errors.USER
    body = json.loads(capsys.readouterr().out)
    assert (body["command"], body["ok"]) == ("matrix run", False)
    assert body["result"]["counts"] == {"passed": 1, "failed": 2, "error": 0, "skipped": 0}
    assert len(body["result"]["bad"]) == 2


@pytest.mark.parametrize(
    "line",
    [
        "--backend vendor",
        "--backend torch,",
        "--switches some",
        "--device tpu",
        "--tier all",
        "-n 0",
        "--tier ops,",
        "--resume",
        "--shard 0/2",
        "--shard 3/2",
        "--shard 1",
        "--shard 1/0",
        "--shard x/y",
        "--address auto",
        "--executor ray --shard 1/2",
        "--executor slurm",
        "--shard -1/2",
        "--shard 1/2/3",
        "--shard \u0661/\u0662",
    ],
)
def test_choices_that_are_none(asked: dict[str, Any], line: str) -> None:
    assert cli.run(["matrix", "run", *line.split()]) == errors.USAGE
    assert "options" not in asked


FAULT = Fault("lost", "dtype", "x.py", "a", "b", ("x",), "B2")


@pytest.mark.parametrize(
    ("outcome", "code"), [("caught", errors.OK), ("survived", errors.USER), ("broken", errors.USER)]
)
def test_selftest_fails_where_a_fault_is_not_caught(
    outcome: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = selftest.Verdict(FAULT, outcome, "test_x", "why", 3, 0.5)
    monkeypatch.setattr(selftest, "run", lambda *a: selftest.Result((verdict,), 1.0))
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    assert cli.run(["matrix", "selftest"]) == code
    out = capsys.readouterr().out
    assert f"{int(code == 0)} of 1 faults caught" in out
    assert "B2" in out and "test_x" in out
    assert cli.run(["matrix", "selftest", "--json"]) == code
    body = json.loads(capsys.readouterr().out)
    assert body["result"]["faults"][0]["outcome"] == outcome
    assert (body["error"] is None) == (code == 0)


def test_the_list_is_checked_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(selftest.environment, "ensure", refuse)
    monkeypatch.setattr(selftest.faults, "load", lambda content: (FAULT,))
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    assert cli.run(["matrix", "selftest"]) == errors.USER
    assert "lost: there is no x.py" in capsys.readouterr().err


def test_env_can_be_pasted_whatever_the_folder_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine(Path("/a b"), Path("/a b/$x/python"), Path("/a b/s"), Path("/a b/it's"), {"torch": "2.13.0"})
    monkeypatch.setattr(environment, "ensure", lambda *_: engine)
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    assert cli.run(["matrix", "env", "--shell"]) == errors.OK
    script = capsys.readouterr().out + 'printf "%s|%s" "$KUNLUNFORK_ENGINE_PYTHON" "$KUNLUNFORK_ENGINE_TRITON"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "/a b/$x/python|/a b/it's"
    assert cli.run(["matrix", "env", "--json"]) == errors.OK
    assert json.loads(capsys.readouterr().out)["result"]["versions"] == {"torch": "2.13.0"}


def test_results_that_could_not_be_written_are_refused_before_anything_is_built(
    content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(*_: object) -> None:
        raise AssertionError("built")

    monkeypatch.setattr("kunlunfork.matrix.environment.ensure", built)
    options = Options("0.25.1", "cpu", ("ops",), "all-on", ("torch",), None, 1, 0, 0, tmp_path, None)
    with pytest.raises(ForkError, match="cannot be written"):
        run.run(content, Cache(tmp_path / "cache"), options, Silent())


def test_replay_fails_where_the_fork_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    trace = tmp_path / "t.json"
    assert cli.run(["matrix", "replay", str(trace)]) == errors.USER
    said = capsys.readouterr()
    assert "there is no trace" in said.out + said.err
    trace.write_text("{}")
    found = steps.Replayed("step 3, after\n  a: 1 of 2 differ", {"KUNLUN_KERNELS": "torch"}, 4, 2, None)
    monkeypatch.setattr(steps, "replay", lambda *a: found)
    assert cli.run(["matrix", "replay", str(trace)]) == errors.USER
    assert "the fork differs from upstream in step 3, after" in capsys.readouterr().out
    monkeypatch.setattr(steps, "replay", lambda *a: replace(found, difference=None))
    assert cli.run(["matrix", "replay", str(trace)]) == errors.OK
    assert "the same in every step" in capsys.readouterr().out


def test_selftest_of_the_step_tier_takes_its_own_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    asked: list[Any] = []

    def fake(*given: Any) -> selftest.Result:
        asked.extend(given)
        return selftest.Result((), 1.0)

    monkeypatch.setattr(steps, "selftest", fake)
    assert cli.run(["matrix", "selftest", "--tier", "step", "-k", "slot", "--jobs", "3"]) == errors.OK
    assert asked[4:6] == [3, "slot"]
