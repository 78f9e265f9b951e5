"""What the command line does with its streams, whatever they are; and what it prints of names that steer a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import REPO, VERSION
from test_cli import as_json, run

from kunlunfork import cli, errors
from kunlunfork.console import Pace, duration
from kunlunfork.content import Content
from kunlunfork.store import Base

TOOL = f"{sys.executable} -m kunlunfork"


def shell(line: str, *, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(REPO / "scripts"), "KF": TOOL, "REPO": str(REPO), **env}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=cwd, env=environ, check=False)


@pytest.mark.parametrize("verb", ["pins", "pins --json", "--help", "pins --help", "--version", "no-such --json",
                                  "pins --vllm --json", "status /nothing --json"])  # fmt: skip
def test_a_full_disk_under_the_output_is_told(verb: str) -> None:
    done = shell(f"$KF {verb} > /dev/full")
    assert done.returncode == errors.USER
    assert done.stderr.count("error: the result cannot be written") == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", ">&- 2>&- <&-", "2>/dev/full"])
@pytest.mark.parametrize("verb", ["pins", "status /nothing", "no-such", "status /nothing --json"])
def test_closed_streams_change_nothing_else(verb: str, closed: str) -> None:
    want = shell(f"$KF {verb}")
    done = shell(f"$KF {verb} {closed}")
    assert done.returncode == want.returncode
    assert done.stdout == ("" if ">&-" in closed.split() else want.stdout)
    assert done.stderr == ("" if "2>" in closed else want.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_apply_and_revert_without_streams(closed: str, small_content: Content, tree: Path, base: Base) -> None:
    """A file that is opened instead of a closed stream must not get what is meant for the stream."""
    content = small_content.root
    done = shell(f'$KF apply --in-place "{tree}" --repo "{content}" {closed}')
    assert done.returncode == 0
    assert as_json("verify", tree, "--repo", content)[0] == 0
    assert shell(f'$KF revert "{tree}" {closed}').returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "name", [b"ba\xff\xfe", "\u6587".encode(), b"a\x1b[31mred", b"a\x07\x9bb", "a\u202eb".encode()]
)
def test_any_name_of_a_tree_can_be_printed(
    name: bytes, encoding: str, small_content: Content, tree: Path, base: Base
) -> None:
    odd = os.fsencode(tree.parent) + b"/" + name
    tree.rename(os.fsdecode(odd))
    for verb in ("apply --in-place", "status", "verify", "revert", "revert"):
        line = f'$KF {verb} "$TREE"' + ' --repo "$REPO"' * (verb != "revert")
        env = {**os.environb, b"PYTHONPATH": os.fsencode(REPO / "scripts"), b"KF": TOOL.encode(), b"TREE": odd,
               b"REPO": os.fsencode(small_content.root), b"PYTHONIOENCODING": encoding.encode()}  # fmt: skip
        done = subprocess.run(["sh", "-c", line], capture_output=True, env=env, check=False)
        said = done.stdout + done.stderr
        assert done.returncode in (0, errors.USER), said
        assert b"Traceback" not in said
        assert not {0x1B, 0x07} & set(said), said
        assert b"\xc2\x9b" not in said and b"\xe2\x80\xae" not in said


def test_control_characters_of_arguments_are_not_printed(tmp_path: Path) -> None:
    for args in (["st\x1b[31mtus"], ["status", "--a\x1b[31m"], ["status", f"{tmp_path}/\x1b[31m"]):
        done = run(*args)
        assert done.returncode in (errors.USER, errors.USAGE)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "verb", ["status", "apply --vllm 0.25.1 .", "pins", "lint", "switches", "cache ls", "matrix run"]
)
def test_in_a_folder_that_was_deleted(verb: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f'rmdir "{gone}"; $KF {verb} --json', cwd=gone)
    assert done.returncode == errors.USER
    body = json.loads(done.stdout)
    assert body["command"] == " ".join(w for w in verb.split() if w.isalpha())
    assert "current folder" in body["error"]["message"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (["cache", "ls", "--bogus"], "cache ls"),
        (["cache", "export"], "cache export"),
        (["cache", "bogus"], "cache"),
        (["matrix", "run", "--tier", "no"], "matrix run"),
        (["status", "--bogus"], "status"),
        (["aply"], "kunlunfork"),
        (["--bogus"], "kunlunfork"),
    ],
)
def test_usage_errors_name_the_whole_command(args: list[str], command: str) -> None:
    code, body = as_json(*args)
    assert (code, body["command"], body["error"]["exit_code"]) == (errors.USAGE, command, errors.USAGE)


@pytest.mark.parametrize("args", [["pins"], ["cache", "prune"]])
def test_an_interrupt_is_an_object_too(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kunlunfork.content.find", lambda repo: signal.raise_signal(signal.SIGINT))
    assert cli.run([*args, "--json"]) == errors.INTERRUPTED
    body = json.loads(capsys.readouterr().out)
    assert (body["ok"], body["command"], body["error"]["exit_code"]) == (False, " ".join(args), errors.INTERRUPTED)


def test_an_interrupt_while_a_verb_is_imported_is_an_object_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: signal.raise_signal(signal.SIGINT))
    assert cli.run(["pins", "--json"]) == errors.INTERRUPTED
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "interrupted"


def test_verify_says_what_it_found_also_where_it_fails(small_content: Content, tree: Path, base: Base) -> None:
    repo = ("--repo", small_content.root)
    assert as_json("apply", "--in-place", tree, *repo)[0] == 0
    (tree / "vllm/v1/worker/gpu_worker.py").write_text("# other\n")
    code, body = as_json("verify", tree, *repo)
    assert code == errors.USER
    assert body["result"]["state"] == "edited"
    assert body["result"]["problems"] == body["error"]["details"] == ["vllm/v1/worker/gpu_worker.py: edited"]
    done = run("verify", tree, *repo)
    assert done.returncode == errors.USER and done.stdout == ""
    assert "error: " in done.stderr and "gpu_worker.py: edited" in done.stderr


@pytest.mark.parametrize("verb", ["pins", "switches", "lint"])
def test_which_content_was_used(verb: str, small_content: Any, tmp_path: Path) -> None:
    if verb == "switches":
        source = "vllm/v1/worker/gpu/kunlun/switches.py"
        (small_content.overlay / VERSION / source).write_bytes((REPO / "overlay" / VERSION / source).read_bytes())
    done = run(verb, "--repo", small_content.root, "--json")
    assert json.loads(done.stdout)["result"]["content"] == str(small_content.root)
    assert done.stderr.count(str(small_content.root)) == 1
    mine = run(verb, "--json", cwd=tmp_path)
    assert json.loads(mine.stdout)["result"]["content"] == str(REPO)
    assert mine.stderr == "", "nothing to say of the package's own"


def test_long_work_says_in_a_log_how_much_time_is_left() -> None:
    said: list[str] = []
    now = [0.0]
    pace = Pace("running", 200, said.append, lambda: now[0])
    for now[0], done in ((1.0, 1), (31.0, 0), (31.5, 9), (62.0, 50), (70.0, 60), (120.0, 100), (200.0, 200)):
        pace(done)
    assert said == ["running: 4%", "running: 25%, about 3 min left", "running: 50%, about 2 min left"]
    unknown = Pace("running", None, said.append, lambda: now[0])
    now[0] = 1000.0
    unknown(7)
    assert len(said) == 3
    assert [duration(s) for s in (0.4, 59.2, 61, 3540, 3600, 7530)] == [
        "0 s", "59 s", "1 min", "59 min", "1 h 0 min", "2 h 6 min",
    ]  # fmt: skip
