from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchkit import SDIST, small_cache
from support import VERSION, Upstream, digest

from kunlunfork import errors
from kunlunfork.bench import run
from kunlunfork.cache import ENV, Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings


@pytest.fixture
def user(small_content: Content, upstream: Upstream, tmp_path: Path) -> Cache:
    return small_cache(small_content, upstream, tmp_path)


def _bench(content: Content, cache: Cache, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kunlunfork", "bench", "apply", "--repo", content.root, "--offline", *args],
        env={**os.environ, ENV: str(cache.root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run(small_content: Content, user: Cache, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    before = digest(user.root)
    out = tmp_path / "out.json"
    done = _bench(small_content, user, "--rounds", "1", "--dir", work, "--out", out)
    assert done.returncode == 0, done.stderr
    for text in ("new / worktree add", "<= 1.50x", "page cache", "git worktree add"):
        assert text in done.stdout
    result = json.loads(out.read_text())
    assert result["version"] == VERSION
    assert result["rounds"] == 1
    assert result["command"][:3] == ["kunlunfork", "bench", "apply"]
    assert result["commit"] is None, "the content of this test is no clone"
    assert len(result["overlay_hash"]) == 64
    assert result["machine"]["cores"] >= 1
    assert {"load", "git", "python", "cpu", "file_system"} <= set(result["machine"])
    assert ("quilt" in result["missing"]) == (result["machine"]["quilt"] is None)
    assert [t["name"] for t in result["targets"]] == ["new / worktree add", "in place", "import / tar", "help"]
    assert all(s["all"][0]["wall"] > 0 for s in result["steps"])
    assert list(work.iterdir()) == [], "the scratch folder is gone"
    left = {name: was for name, was in digest(user.root).items() if not name.endswith(".lock")}
    assert left == before, "the user's cache is as it was"
    assert "warming up" in done.stderr


def test_what_cannot_be_measured(small_content: Content, user: Cache, tmp_path: Path) -> None:
    def refused(*args: str | Path) -> str:
        done = _bench(small_content, user, *args)
        assert done.returncode == errors.USER
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "nothing could be measured" in refused("--dir", tmp_path / "no-such-folder")
    assert "no pin for vLLM 9.9.9" in refused("--vllm", "9.9.9")
    (user.downloads / SDIST).unlink()
    assert "is not there" in refused("--dir", tmp_path)


def test_nothing_stays_when_a_contender_fails(
    small_content: Content, user: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kunlunfork.bench.contenders.mail", lambda patch: b"no mail\n")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(ForkError, match="git am failed"):
        run.bench_apply(small_content, VERSION, 1, work, Settings(user, None, True, Silent()))
    assert list(work.iterdir()) == []


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="cannot be written"):
        run.write(tmp_path / "no" / "file", {})


def test_a_report_that_could_not_be_written_is_refused_first(
    small_content: Content, user: Cache, tmp_path: Path
) -> None:
    for out in (tmp_path / "no" / "file", tmp_path):
        done = _bench(small_content, user, "--rounds", "1", "--dir", tmp_path, "--out", out)
        assert done.returncode == errors.USER
        assert "cannot be written" in done.stderr
        assert "warming up" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_stays_when_it_is_ended(
    number: signal.Signals, small_content: Content, user: Cache, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kunlunfork",
            "bench",
            "apply",
            "--repo",
            small_content.root,
            "--offline",
            "--dir",
            work,
        ],
        env={**os.environ, ENV: str(user.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("round 1"):
            break
    child.send_signal(number)
    child.stderr.read()
    assert child.wait() == errors.INTERRUPTED
    assert list(work.iterdir()) == []
