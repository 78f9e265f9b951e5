"""`kunlunfork diff` as it is typed: exit codes, pipes, terminals, pagers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPO, VERSION
from test_cli import as_json, run

from kunlunfork.diff import pager
from kunlunfork.store import Base

GPU = "vllm/v1/worker/gpu_worker.py"
DIFF = ("diff", "--repo", REPO, "--offline", "--vllm", VERSION)


def on_terminal(*args: str | Path, **env: str) -> str:
    """What a command writes to a terminal, and what its pager does."""
    leader, follower = pty.openpty()
    own = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "LESS", "PAGER")}
    child = subprocess.Popen(
        [sys.executable, "-m", "kunlunfork", *map(str, args)], stdout=follower, stderr=subprocess.DEVNULL,
        env={**own, "TERM": "xterm", **env},
    )  # fmt: skip
    os.close(follower)
    found = b""
    with contextlib.suppress(OSError):  # a terminal ends with its last user
        while part := os.read(leader, 4096):
            found += part
    os.close(leader)
    child.wait()
    return found.decode()


@pytest.fixture(autouse=True)
def _store(base: Base) -> None:
    """The release is in the store."""


def test_exit_codes(tmp_path: Path) -> None:
    assert run(*DIFF, GPU).returncode == 0
    assert run(*DIFF, GPU, "--exit-code").returncode == 10
    assert run(*DIFF, "vllm/__init__.py", "--exit-code").returncode == 0
    assert run(*DIFF, "no/such/file.py").returncode == 1
    assert run(*DIFF, "--format", "patch", "--against", "0.33.0").returncode == 2
    assert run(*DIFF, "--format", "patch", "--stat").returncode == 2
    assert run(*DIFF, "-U", "-1").returncode == 2
    assert run(*DIFF, "--out", tmp_path).returncode == 1
    assert run(*DIFF, "--tree", tmp_path).returncode == 1


def test_a_pipe_gets_plain_text() -> None:
    done = run(*DIFF, GPU)
    assert done.stdout.startswith(f"diff --git a/{GPU} b/{GPU}\n")
    assert "\x1b" not in done.stdout
    assert run(*DIFF, GPU, "--color", "always").stdout.count("\x1b[32m") == 1


def test_json_and_format_json_are_the_same() -> None:
    code, body = as_json(*DIFF, GPU)
    assert code == 0 and body["result"]["files"][0]["path"] == GPU
    assert json.loads(run(*DIFF, GPU, "--format", "json").stdout) == body


def test_json_beside_a_file(tmp_path: Path) -> None:
    """--json is one object on stdout, whatever goes into the file."""
    file = tmp_path / "page.html"
    code, body = as_json(*DIFF, GPU, "--format", "html", "--out", file)
    assert code == 0 and body["result"]["files"][0]["path"] == GPU
    assert file.read_bytes().startswith(b"<!doctype html>")
    assert run(*DIFF, GPU, "--format", "json", "--out", file).stdout == ""
    assert json.loads(file.read_text())["files"] == body["result"]["files"]
    assert run(*DIFF, GPU, "--format", "md", "--json").returncode == 2


def test_out_writes_what_a_pipe_gets(tmp_path: Path) -> None:
    file = tmp_path / "fork.patch"
    assert run(*DIFF, "--format", "patch", "--out", file).stdout == ""
    assert file.read_text() == run(*DIFF, "--format", "patch").stdout
    assert run(*DIFF, GPU, "--color", "always", "--out", file).returncode == 0
    assert "\x1b" not in file.read_text(), "a file gets no colours"


def test_a_terminal_gets_colours_and_the_pager_of_git(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    shell = f"cat > '{seen}'; echo \"LESS=$LESS\" >> '{seen}'"
    assert on_terminal(*DIFF, GPU, GIT_PAGER=shell) == ""
    assert "\x1b[32m+" in seen.read_text()
    assert seen.read_text().endswith("LESS=FRX\n")
    seen.unlink()
    assert "diff --git" in on_terminal(*DIFF, GPU, "--no-pager", GIT_PAGER=shell)
    assert not seen.exists()
    assert "diff --git" in on_terminal(*DIFF, GPU, GIT_PAGER="cat")
    on_terminal(*DIFF, GPU, GIT_PAGER=shell, NO_COLOR="1", LESS="R")
    assert "\x1b" not in seen.read_text()
    assert seen.read_text().endswith("LESS=R\n")


def test_the_pager_is_configured_as_for_git(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / ".gitconfig").write_text(f"[core]\n\tpager = \"cat > '{seen}'\"\n")
    assert on_terminal(*DIFF, GPU, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path)) == ""
    assert "diff --git" in seen.read_text()


def test_a_pager_that_is_not_there_or_has_seen_enough() -> None:
    assert "diff --git" in on_terminal(*DIFF, GPU, GIT_PAGER="no-such-pager-at-all")
    assert on_terminal(*DIFF, "--exit-code", GIT_PAGER="true") == ""


def test_colours_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "_on_terminal", lambda: True)
    assert pager.colours("auto", {"TERM": "xterm"})
    assert pager.colours("auto", {"TERM": "xterm", "NO_COLOR": ""}), "present, but empty"
    assert not pager.colours("auto", {"TERM": "xterm", "NO_COLOR": "0"})
    assert not pager.colours("auto", {"TERM": "dumb"})
    assert pager.colours("always", {"NO_COLOR": "1"})
