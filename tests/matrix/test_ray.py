"""The matrix on a Ray cluster of two nodes on this machine; skipped where Ray is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matrixkit
import pytest
from matrixkit import CELLS

from kunlunfork import cli, errors
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import merge, rayrun, report, results
from kunlunfork.progress import Silent

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    made = matrixkit.make(tmp_path / "content")
    (made.root / "apart").touch()
    monkeypatch.setattr(rayrun, "PROGRAM", ("-c", matrixkit.SCRIPT, str(made.root)))
    return made


def _run(content: Content, out: Path, progress: Any = None, **more: Any) -> Any:
    options = matrixkit.options(out, 0, **more)
    return rayrun.run(content, Cache(content.root / "cache"), options, None, progress or Silent())


def test_two_nodes_do_what_one_machine_does(cluster: Any, content: Content, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    result = _run(content, out)
    assert result.summary.counts == {"passed": CELLS - 4, "failed": 4, "error": 0, "skipped": 0}
    assert len(matrixkit.ran(content)) == CELLS - 1
    loaded = results.load([out])
    assert {c.run.shard for c in loaded.cells} == {"1/4", "2/4", "3/4", "4/4"}
    made = report.make(merge.merge(loaded, merge.hashes_of(content)), None)
    assert (made.total, made.failing, made.unfinished, made.notes) == (CELLS, 4, (), ())
    # Going on finds nothing to do.
    assert _run(content, out, resume=True).resumed == CELLS
    assert matrixkit.ran(content) == []


def test_cells_of_a_lost_node_run_again(cluster: Any, content: Content, tmp_path: Path) -> None:
    (content.parity / "slow").touch()
    out = tmp_path / "r.jsonl"
    progress = Silent()

    def lose() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if out.exists() and len({h["shard"] for h in _heads(out)}) == 2:
                break
            time.sleep(0.05)
        cluster.remove_node(cluster.second, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    result = _run(content, out, progress)
    thread.join()
    assert any("was lost" in warning for warning in progress.warnings)
    assert result.summary.counts == {"passed": CELLS - 4, "failed": 4, "error": 0, "skipped": 0}
    loaded = results.load([out])
    made = report.make(merge.merge(loaded, None), None)
    assert (made.total, made.twice, made.unfinished) == (CELLS, (), ())
    # What had come from the lost node did not run again.
    assert len(loaded.cells) == CELLS


def _heads(out: Path) -> list[dict[str, Any]]:
    whole = out.read_bytes().rpartition(b"\n")[0]
    return [raw for raw in map(json.loads, whole.splitlines()) if raw["kind"] == "head"]


def test_a_node_with_another_fork_is_refused(cluster: Any, content: Content, tmp_path: Path) -> None:
    (content.root / "apart").unlink()
    with pytest.raises(ForkError, match="has another fork than this one"):
        _run(content, tmp_path / "r.jsonl")


def test_a_shard_that_always_fails_says_why(
    cluster: Any, content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rayrun, "PROGRAM", ("-c", "raise SystemExit('no such thing')"))
    with pytest.raises(ForkError, match="failed 3 times") as e:
        _run(content, tmp_path / "r.jsonl")
    assert e.value.details == ("no such thing",)


def test_the_command(cluster: Any, content: Content, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["matrix", "run", *matrixkit.ON, "--executor", "ray", "--repo", str(content.root)]
    assert cli.run([*line, "--results", str(tmp_path / "r.jsonl"), "--json"]) == errors.USER
    body = json.loads(capsys.readouterr().out)
    assert body["result"]["counts"] == {"passed": CELLS - 4, "failed": 4, "error": 0, "skipped": 0}


def test_no_cluster_is_reached(tmp_path: Path, content: Content) -> None:
    assert not ray.is_initialized()
    with pytest.raises(ForkError, match=r"no Ray cluster is reached at 127\.0\.0\.1:1"):
        rayrun._ray("127.0.0.1:1")


def test_being_told_to_end_is_being_interrupted(tmp_path: Path, content: Content) -> None:
    """Ray sets a handler of its own; that of the command line must be there again."""
    (content.parity / "slow").touch()
    out = tmp_path / "r.jsonl"
    argv = [sys.executable, "-c", matrixkit.SCRIPT, str(content.root), "matrix", "run", *matrixkit.ON, "-n", "1"]
    argv += ["--executor", "ray", "--repo", str(content.root), "--results", str(out)]
    env = {**os.environ, "KIT_ON_RAY": "1"}
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    deadline = time.monotonic() + 90
    while not (out.exists() and b'"kind": "cell"' in out.read_bytes()):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    child.terminate()
    assert child.wait(60) == errors.INTERRUPTED
    assert results.load([out]).cells
