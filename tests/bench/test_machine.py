from __future__ import annotations

import platform
from pathlib import Path

import pytest

from kunlunfork import git
from kunlunfork.bench import machine


def test_what_a_measurement_depends_on(tmp_path: Path) -> None:
    here = machine.look(tmp_path)
    assert here.cpu
    assert here.cores >= 1
    assert here.memory_bytes > 1 << 28
    assert here.python == platform.python_version()
    assert here.git.split(".")[0].isdigit()
    assert here.file_system
    assert here.load >= 0
    if Path("/proc/self/mounts").is_file():
        assert machine.look(Path("/proc")).file_system == "proc"


def test_quilt_is_only_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert machine.look(tmp_path).quilt is None


def test_the_commit_of_the_clone(tmp_path: Path) -> None:
    assert machine.clone_commit(tmp_path) is None
    git.run(["init", "-q", tmp_path])
    assert machine.clone_commit(tmp_path) is None
    git.run(["-C", tmp_path, "commit", "-q", "--allow-empty", "-m", "first"])
    commit = git.run(["-C", tmp_path, "rev-parse", "HEAD"]).decode().strip()
    assert machine.clone_commit(tmp_path) == commit
    (tmp_path / "edit").touch()
    assert machine.clone_commit(tmp_path) == f"{commit}+"
