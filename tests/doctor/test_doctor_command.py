"""The verb: machines without git, torch, a tree or sense."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import support
from support import REPO, VERSION
from test_device import BACKENDS, TORCH, TRITON
from test_plugins import KUNLUN, distribution

from kunlunfork import cli
from kunlunfork.content import Content
from kunlunfork.store import Base, Store

COMMAND = [sys.executable, "-m", "kunlunfork", "doctor"]


def run(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "KUNLUNFORK_REPO": str(REPO), **(env or {})}
    return subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, cwd=cwd, env=environ, check=False
    )


def as_json(*args: str | Path, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """The exit code and the result; every fix that names one of our verbs must be one that can be typed."""
    done = run(*args, "--json", cwd=cwd, env=env)
    body = json.loads(done.stdout)
    assert set(body) == {"schema", "command", "ok", "result", "warnings", "error"}
    assert body["command"] == "doctor"
    result = body["result"]
    if result is None:
        assert body["error"]["fix"]
        return done.returncode, body["error"]
    bad = [c for c in result["checks"] if c["state"] == "bad"]
    assert (done.returncode, body["ok"]) == ((1, False) if bad else (0, True))
    for check in result["checks"]:
        assert set(check) == {"name", "state", "found", "fix", "details"}
        assert check["fix"] or check["state"] != "bad", check
        parses(check["fix"] or "")
    return done.returncode, result


def parses(fix: str) -> None:
    words = shlex.split(fix) if fix.startswith("kunlunfork ") else []
    if words[:1] == ["kunlunfork"]:
        command = cli.cli.get_command(click.Context(cli.cli), words[1])
        assert command is not None, fix
        command.make_context(words[1], words[2:])


def state(result: dict[str, Any], name: str) -> str:
    return next(c["state"] for c in result["checks"] if c["name"] == name)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "nothing here"
    folder.mkdir()
    return folder


@pytest.fixture
def fork(tree: Path, content: Content, store: Store) -> Path:
    support.apply(content, tree, store)
    return tree


def test_a_bare_machine(empty: Path) -> None:
    code, result = as_json(cwd=empty)
    assert code == 0
    assert state(result, "vllm") == state(result, "torch") == "note"
    assert (result["tree"], result["runner"], result["sites"]) == (None, None, {})


@pytest.mark.parametrize("forked", [True, False])
def test_without_git(fork: Path, empty: Path, forked: bool) -> None:
    env = {"PATH": str(empty)}
    code, result = as_json(*([fork] if forked else []), cwd=empty, env=env)
    assert state(result, "git") == "note"
    assert [c["name"] for c in result["checks"] if c["state"] == "bad"] == (["torch"] if forked else [])
    assert code == int(forked)


def test_a_fork_tree(fork: Path, empty: Path, packages, tmp_path: Path) -> None:
    packages("torch.py", TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    code, result = as_json(fork, cwd=empty)
    assert code == 0, result
    assert {
        n: state(result, n) for n in ("vllm", "patched by", "bytecode", "sites", "torch", "switches")
    } == dict.fromkeys(("vllm", "patched by", "bytecode", "sites", "torch", "switches"), "ok")
    assert set(result["sites"].values()) == {"fork"}
    assert result["tree"] == str(fork)
    # The tree itself, without its name.
    assert as_json(cwd=fork / "vllm" / "v1")[1]["tree"] == str(fork)
    spec = json.dumps({"method": "dspark", "num_speculative_tokens": 7})
    code, result = as_json(fork, "--speculative-config", spec, cwd=empty)
    assert (code, result["runner"]["runner"]) == (0, "V2")
    env = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    code, result = as_json(fork, "--speculative-config", spec, cwd=empty, env=env)
    assert (code, result["runner"]["runner"], state(result, "runner")) == (1, "V1", "bad")


def test_a_linked_tree(base: Base, empty: Path) -> None:
    command = [sys.executable, "-m", "kunlunfork", "apply", "--vllm", VERSION, "--offline", "--link", "linked"]
    subprocess.run(command, check=True, cwd=empty, env={**os.environ, "KUNLUNFORK_REPO": str(REPO)})
    _, result = as_json(empty / "linked", "--speculative-config", '{"method": "dspark"}', cwd=empty)
    assert [c["name"] for c in result["checks"] if c["state"] == "bad"] == ["torch"]
    assert set(result["sites"].values()) == {"fork"}
    assert result["runner"]["runner"] == "V2"


@pytest.mark.parametrize(
    ("env", "check", "text"),
    [
        ({"KUNLUN_HOSTVECT": "1"}, "switches", "unset KUNLUN_HOSTVECT"),
        ({"KUNLUN_HOSTVEC": "perhaps"}, "switches", "unset KUNLUN_HOSTVEC"),
        ({"KUNLUN_KERNELS": "vendor"}, "backend", "unset KUNLUN_KERNELS"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "yes"}, "variables", "unset VLLM_USE_V2_MODEL_RUNNER"),
        ({"VLLM_USE_V2_MODELRUNNER": "1"}, "variables", "unset VLLM_USE_V2_MODELRUNNER"),
    ],
)
def test_variables(fork: Path, empty: Path, packages, env: dict[str, str], check: str, text: str) -> None:
    packages("torch.py", TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    code, result = as_json(fork, cwd=empty, env=env)
    assert (code, state(result, check)) == (1, "bad")
    assert next(c["fix"] for c in result["checks"] if c["name"] == check) == text
    assert as_json(fork, cwd=empty, env={"KUNLUN_OTHER_PEOPLES": "1", "VLLM_USE_V1": "1"})[0] == 0


def test_a_triton_that_takes_the_process_with_it(fork: Path, empty: Path, packages) -> None:
    packages("torch.py", TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    packages("triton/__init__.py", TRITON.format(launch="os.abort()"))
    packages("triton/language.py", "")
    packages("triton/backends.py", BACKENDS.format(active="True", names="'a': _Backend"))
    packages("vllm-0.25.1.dist-info/METADATA", f"Name: vllm\nVersion: {VERSION}\n")
    code, result = as_json(fork, cwd=empty)
    (launch,) = [c for c in result["checks"] if c["name"] == "launch"]
    assert (code, launch["state"], launch["fix"]) == (1, "bad", "export KUNLUN_KERNELS=torch")
    assert "SIGABRT" in launch["found"]
    assert as_json(fork, cwd=empty, env={"KUNLUN_KERNELS": "torch"})[0] == 0


def test_the_plugin_beside_it(fork: Path, empty: Path, packages, tmp_path: Path) -> None:
    packages("torch.py", TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    distribution(fork, "vllm_kunlun", KUNLUN)
    (fork / "vllm_kunlun/v1/worker/gpu").mkdir(parents=True)
    code, result = as_json(fork, "--speculative-config", '{"method": "dspark"}', cwd=empty)
    assert code == 0
    assert state(result, "plugins") == state(result, "runner") == "note"
    assert "takes precedence" in next(c["found"] for c in result["checks"] if c["name"] == "sites")
    env = {"VLLM_PLUGINS": "lora_filesystem_resolver"}
    result = as_json(fork, "--speculative-config", '{"method": "dspark"}', cwd=empty, env=env)[1]
    assert state(result, "runner") == "ok"


def test_nothing_of_the_tree_runs_in_this_process(fork: Path, empty: Path, packages) -> None:
    mark = empty / "ran"
    trap = f"open({str(mark)!r}, 'a').write(str(__import__('os').getppid()) + '\\n')\n"
    packages("torch.py", trap + TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    for file in (fork / "vllm").rglob("*.py"):
        if "kunlun" not in file.parts and file.name == "__init__.py":
            file.write_text(trap)
    as_json(fork, cwd=empty)
    assert len(mark.read_text().splitlines()) == 1  # torch, in the child
    assert not list(fork.rglob("*.pyc"))


def test_run_asks_the_vllm_of_the_tree(fork: Path, empty: Path, packages) -> None:
    packages("torch.py", TORCH.format(version="2.11.0", cuda=True, pin="pass"))
    # The small tree lacks most of vLLM: that it does not load is a finding.
    code, result = as_json(fork, "--run", cwd=empty)
    (line,) = [c for c in result["checks"] if c["name"] == "run"]
    assert (code, line["state"]) == (1, "bad")
    assert line["found"].startswith("importing vLLM: exit status 1, ")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["/nothing"], 1),
        (["--site-packages"], 1),
        (["--python", "/nothing"], 1),
        (["--python", "/bin/sh"], 1),
        (["--repo", "/"], 1),
        (["--model", "/nothing"], 1),
        (["--speculative-config", "{"], 2),
        (["TREE", "--site-packages"], 2),
        (["--no-such"], 2),
    ],
)
def test_bad_arguments(empty: Path, args: list[str], code: int) -> None:
    done = run(*args, cwd=empty)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert "fix: " in done.stdout + done.stderr


def _on_a_terminal(cwd: Path, env: dict[str, str]) -> bytes:
    leader, follower = pty.openpty()
    environ = {**os.environ, "KUNLUNFORK_REPO": str(REPO), "TERM": "xterm", **env}
    child = subprocess.Popen(COMMAND, stdout=follower, stderr=follower, cwd=cwd, env=environ)
    os.close(follower)
    found = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            part = os.read(leader, 4096)
        except OSError:  # nobody has the other end any more
            break
        found += part
    child.wait()
    os.close(leader)
    return found


def test_colours_only_on_a_terminal(empty: Path) -> None:
    assert "\x1b" not in run(cwd=empty).stdout
    env = dict.fromkeys(("NO_COLOR",), "")
    assert b"\x1b[32mok" in _on_a_terminal(empty, env)
    plain = _on_a_terminal(empty, {"NO_COLOR": "1"})
    assert b"\x1b[3" not in plain
    assert b"ok    python" in plain


def test_names_cannot_steer_a_terminal(tree: Path, empty: Path) -> None:
    odd = tree.with_name("tree\x1b[31m")
    tree.rename(odd)
    done = run(odd, cwd=empty)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b[31m" in done.stdout
