from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import REPO

from kunlunfork.errors import ForkError
from kunlunfork.matrix import workers
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.workers import Worker, check_collected, start, stop, watch

# Writes what the pytest plugin writes, without pytest.
SCRIPT = """
import json, os, sys, time
out = open(os.environ["KUNLUN_MATRIX_OUT"], "a", buffering=1)
def say(**line):
    out.write(json.dumps(line) + "\\n")
say(collected=[{"test": t, "launcher": "site", "case": t} for t in "abc"])
while not os.path.exists(os.environ["KUNLUN_MATRIX_PICK"]): time.sleep(0.01)
picked = json.load(open(os.environ["KUNLUN_MATRIX_PICK"]))
"""


def _worker(folder: Path, name: str = "w") -> Worker:
    return Worker(folder / f"{name}.jsonl", folder / f"{name}.log", folder / f"{name}.json")


@pytest.fixture
def team() -> Iterator[list[Worker]]:
    members: list[Worker] = []
    yield members
    stop(members)


def _run(worker: Worker, body: str, folder: Path, team: list[Worker], give: str = "abc") -> None:
    team.append(worker)
    start(worker, [sys.executable, "-c", SCRIPT + body], {}, folder)
    watch(team, lambda done: None, lambda: worker.found is not None)
    check_collected(team)
    worker.give([test for test in worker.found or () if test["test"] in give])


def test_reports_come_as_the_tests_end(tmp_path: Path, team: list[Worker]) -> None:
    worker = _worker(tmp_path)
    _run(worker, 'say(test="c", outcome="passed")\nsay(test="a", outcome="error")', tmp_path, team, "ca")
    seen: list[list[str]] = []
    shown: list[int] = []

    def look(done: int) -> None:
        shown.append(done)
        seen.append([f"{x['test']} {x['outcome']} {x['launcher']}" for x in worker.fresh()])

    watch(team, look, lambda: False)
    assert [line for lines in seen for line in lines] == ["c passed site", "a error site"]
    assert shown[-1] == 2
    assert worker.fresh() == [] and worker.missing() == []


def test_a_worker_runs_what_it_is_given(tmp_path: Path, team: list[Worker]) -> None:
    worker = _worker(tmp_path)
    _run(worker, 'for t in picked: say(test=t, outcome="passed")', tmp_path, team, "b")
    watch(team, lambda done: None, lambda: False)
    assert [x["test"] for x in worker.fresh()] == ["b"]
    assert worker.missing() == []


@pytest.mark.parametrize(
    ("body", "fate"),
    [
        ("os.kill(os.getpid(), 11)", "the worker was killed by signal 11"),
        ("os._exit(4)", "the worker ended with exit code 4"),
    ],
)
def test_a_worker_that_dies_leaves_an_error_in_each_cell_it_did_not_do(
    tmp_path: Path, team: list[Worker], body: str, fate: str
) -> None:
    worker = _worker(tmp_path)
    _run(worker, f'say(test="a", outcome="passed")\n{body}', tmp_path, team)
    watch(team, lambda done: None, lambda: False)
    assert [x["test"] for x in worker.fresh()] == ["a"]
    found = [(x["test"], x["outcome"], x["message"]) for x in worker.missing()]
    assert found == [("b", "error", fate), ("c", "error", "not run: the worker had ended")]


def test_a_worker_that_hangs_is_ended(tmp_path: Path, team: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    worker = _worker(tmp_path)
    _run(worker, "time.sleep(600)", tmp_path, team)
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    watch(team, lambda done: None, lambda: False)
    assert worker.child is not None and worker.child.poll() == -9
    assert worker.missing()[0]["message"] == "no answer for 0 s"


def test_stop_ends_what_runs(tmp_path: Path, team: list[Worker]) -> None:
    worker = _worker(tmp_path)
    _run(worker, "time.sleep(600)", tmp_path, team)
    stop(team)
    assert worker.child is not None and worker.child.poll() is not None


def test_tests_that_cannot_be_collected(tmp_path: Path, team: list[Worker]) -> None:
    worker = _worker(tmp_path)
    team.append(worker)
    start(worker, [sys.executable, "-c", "print('why'); raise SystemExit(2)"], {}, tmp_path)
    watch(team, lambda done: None, lambda: worker.found is not None)
    with pytest.raises(ForkError, match="cannot be collected") as e:
        check_collected(team)
    assert e.value.details == ("why",)
    assert e.value.found == "exit code 2"


@pytest.mark.parametrize(
    ("expression", "collected"),
    [
        ("(((", None),
        ("a and", None),
        ("a or", None),
        ("test_a", ["a"]),
        ("not test_a", ["b"]),
        ("no_such", []),
        (None, ["a", "b"]),
    ],
)
def test_an_expression_that_is_none_runs_nothing(
    expression: str | None, collected: list[str] | None, tmp_path: Path, team: list[Worker]
) -> None:
    """With the real plugin in a real pytest: it once counted every test as chosen."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_bound.py").write_text("BACKENDS = DECLARED = ()\n")
    (tests / "test_it.py").write_text(
        f"from pathlib import Path\n\ndef test_a(): Path({str(tmp_path / 'ran')!r}).touch()\ntest_b = test_a\n"
    )
    engine = Engine(tmp_path, Path(sys.executable), tmp_path, tmp_path / "triton", {})
    env = workers.environ(engine, (tests, REPO / "tests" / "parity"), {})
    worker = _worker(tmp_path)
    team.append(worker)
    start(worker, workers.command(engine, tests, ["-k", expression] if expression else []), env, tmp_path)
    watch(team, lambda done: None, lambda: worker.found is not None)
    if collected is None:
        assert worker.found is None and not (tmp_path / "ran").exists()
        with pytest.raises(ForkError, match="cannot be collected") as e:
            check_collected(team)
        assert any("Wrong expression" in line for line in e.value.details)
        return
    check_collected(team)
    assert [x["case"] for x in worker.found or ()] == collected
    worker.give(worker.found or [])
    watch(team, lambda done: None, lambda: False)
    assert len(worker.fresh()) == len(collected)


def test_a_worker_that_lost_its_parent_ends(tmp_path: Path) -> None:
    """With the real plugin; a parent that is gone before the plugin is there is noticed, too."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_bound.py").write_text("BACKENDS = DECLARED = ()\n")
    (tests / "test_it.py").write_text("def test_a(): pass\n")
    engine = Engine(tmp_path, Path(sys.executable), tmp_path, tmp_path / "triton", {})
    env = workers.environ(engine, (tests, REPO / "tests" / "parity"), {})
    env |= {"KUNLUN_MATRIX_OUT": str(tmp_path / "out"), "KUNLUN_MATRIX_PICK": str(tmp_path / "pick"),
            "KUNLUN_MATRIX_PARENT": "1"}  # fmt: skip
    done = subprocess.run(workers.command(engine, tests, []), env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 3 and b"nobody says what to run" in done.stdout
    assert (tmp_path / "out").exists()


def test_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    worker = _worker(tmp_path)
    whole = json.dumps({"collected": [{"test": "a"}]}) + "\n"
    worker.out.write_text(whole[:10])
    assert not worker.poll()
    worker.out.write_text(whole)
    assert worker.poll() and worker.found == [{"test": "a"}]
    assert not worker.poll()


def test_a_child_sees_the_trees_and_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("KUNLUN_HOSTVEC", "0")
    engine = Engine(tmp_path, Path("/e/python"), tmp_path, tmp_path / "triton", {})
    found = workers.environ(engine, (tmp_path / "fork", engine.triton), {"KUNLUN_PARITY_N": "2"})
    assert found["PYTHONPATH"] == f"{tmp_path / 'fork'}:{tmp_path / 'triton'}"
    assert found["OMP_NUM_THREADS"] == "1" and found["KUNLUN_PARITY_N"] == "2"
    assert "KUNLUN_HOSTVEC" not in found
    assert workers.command(engine, tmp_path, ["-k", "x"])[:3] == ["/e/python", "-m", "pytest"]
