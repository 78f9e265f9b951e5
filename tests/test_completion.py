"""Completion as real shells do it, with the script that a user would source."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import click
import pytest
from support import REPO, VERSION
from test_cli import as_json

from kunlunfork import cli, completion
from kunlunfork.content import Content

PINS = Content(REPO, clone=True).versions()

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}
SOURCE = {
    "bash": 'source <(kunlunfork completion bash); PS1="READY> "',
    "zsh": 'autoload -U compinit; compinit -u -d "$PWD/.dump"; eval "$(kunlunfork completion zsh)"; PS1="READY> "',
    "fish": 'kunlunfork completion fish | source; function fish_prompt; echo -n "READY> "; end',
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    exe = folder / "kunlunfork"
    exe.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kunlunfork "$@"\n')
    exe.chmod(0o755)
    (tmp_path / "some-tree").mkdir()
    (tmp_path / "some-file").write_text("")
    return {
        **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb",
        "KUNLUNFORK_REPO": str(REPO),
    }  # fmt: skip


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, name: str, cwd: Path, environ: dict[str, str]) -> None:
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.child = subprocess.Popen(
            START[name], stdin=follower, stdout=follower, stderr=follower, cwd=cwd, env=environ,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(follower)
        self.read(2.0)
        self.write(SOURCE[name] + "\n")
        self.until("READY> ")

    def write(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def read(self, quiet: float) -> str:
        """What it writes until it has been quiet for so long (seconds)."""
        found = b""
        while select.select([self.leader], [], [], quiet)[0]:
            try:
                part = os.read(self.leader, 4096)
            except OSError:
                break
            if not part:
                break
            found += part
        return re.sub(r"\x1b\[[0-9;?>=]*[A-Za-z]|\x1b[=>()][B0]?|[\x07\x0f]", "", found.decode(errors="replace"))

    def until(self, text: str, limit: float = 30.0) -> str:
        found, end = "", time.monotonic() + limit
        while text not in found:
            assert time.monotonic() < end, f"{text!r} is not in {found!r}"
            found += self.read(0.5)
        return found

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.leader)


@pytest.fixture(params=START)
def shell(request, tmp_path: Path, environ: dict[str, str]):
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}")
    made = Shell(request.param, tmp_path, environ)
    yield made
    made.close()


def test_a_real_shell_completes(shell: Shell) -> None:
    for typed, whole in (
        ("kunlunfork stat\t", "status"),
        ("kunlunfork apply --vl\t", "--vllm"),
        ("kunlunfork apply --vllm 0.25\t", VERSION),
        ("kunlunfork matrix run --switches all-of\t", "all-off"),
        ("kunlunfork status some-\t", "some-tree/"),
    ):
        shell.write(typed)
        shell.until(whole)
        # What it offers is not typed on.
        shell.write("\x15")
        shell.read(0.3)


def ask(environ: dict[str, str], cwd: Path, *words: str) -> list[str]:
    """What bash is told for the last of the words."""
    env = {
        **environ,
        completion.VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(["kunlunfork"], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_what_is_offered(environ: dict[str, str], tmp_path: Path) -> None:
    assert ask(environ, tmp_path, "kunlunfork", "") == [f"plain,{verb}" for verb in cli.VERBS]
    assert "plain,--help" in ask(environ, tmp_path, "kunlunfork", "-")
    assert ask(environ, tmp_path, "kunlunfork", "verify", "") == ["dir,"]
    assert ask(environ, tmp_path, "kunlunfork", "cache", "export", "--vllm", "") == [f"plain,{pin}" for pin in PINS]
    # Not an error in the middle of a line.
    ask(environ, tmp_path, "kunlunfork", "no-such", "")


@pytest.mark.parametrize("repo", ["/nowhere", ""])
def test_an_error_has_no_place_there(environ: dict[str, str], tmp_path: Path, repo: str) -> None:
    environ = {**environ, "KUNLUNFORK_REPO": repo or str(tmp_path)}
    assert ask(environ, tmp_path, "kunlunfork", "apply", "--vllm", "") == []


def _parameters(command: click.Command) -> list[tuple[str, click.Parameter]]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = [(command.name or "", p) for p in command.params]
    return [*own, *(pair for one in inner for pair in _parameters(one))]


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_release_and_tree_is_completed(verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUNLUNFORK_REPO", str(REPO))
    command = cli.cli.get_command(click.Context(cli.cli), verb)
    assert command is not None
    before = [p.type for _, p in _parameters(command)]
    try:
        completion.attach(command)
        for name, param in _parameters(command):
            offered = [(i.type, i.value) for i in param.shell_complete(click.Context(command), "")]
            if "--vllm" in param.opts:
                assert offered == [("plain", pin) for pin in PINS], name
            elif param.name == "tree":
                assert offered == [("dir", "")], name
    finally:
        for (_, param), kept in zip(_parameters(command), before, strict=True):
            param.type = kept


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_is_data_too(shell: str) -> None:
    code, body = as_json("completion", shell)
    assert (code, body["result"]["shell"]) == (0, shell)
    assert "_KUNLUNFORK_COMPLETE" in body["result"]["script"]


def test_another_shell_is_wrong_usage() -> None:
    assert as_json("completion", "tcsh")[0] == 2
