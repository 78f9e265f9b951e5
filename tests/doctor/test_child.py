"""Children that crash, hang, write without end or are no Python: each is a finding, and none outlives the question."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kunlunfork.doctor import child
from kunlunfork.doctor.child import Answer

TELL = """
import json, os, signal, subprocess, sys, time
out = open(sys.argv[1], "w")
def tell(**facts):
    out.write(json.dumps(facts) + "\\n")
    out.flush()
tell(first=1, doing="the deed")
"""


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, this_python: Path):
    monkeypatch.setattr(child, "_PROBES", tmp_path)

    def run(text: str, limit: float = 30.0, python: Path = this_python, tree: Path | None = None) -> Answer:
        (tmp_path / "probe.py").write_text(TELL + text)
        return child.ask(python, "probe", {"given": [1, "x"]}, tree=tree, limit=limit)

    return run


def test_an_answer(ask) -> None:
    answer = ask("tell(given=json.loads(sys.argv[2]), cwd=os.getcwd()); tell(doing=None, done=True)")
    assert (answer.trouble, answer.doing) == (None, None)
    assert answer.get("given") == {"given": [1, "x"]}
    assert not Path(answer.get("cwd")).exists()


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("os.abort()", "killed by SIGABRT"),
        ("sys.exit(7)", "exit status 7"),
        ("raise RuntimeError('the driver')", "exit status 1, RuntimeError: the driver"),
        ("pass", "it ended without an answer"),
        ("os._exit(0)", "it ended without an answer"),
        ("print('said', flush=True); os._exit(3)", "exit status 3, said"),
        ("sys.stderr.buffer.write(b'\\xff\\x1b[31m red\\n'); os._exit(3)", "exit status 3, \ufffd [31m red"),
        ("time.sleep(60)", "no end within 1 seconds"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", "no end within 1 seconds"),
        ("while True: print('x' * 100000)", "more than 16 MiB of output"),
        ("while True: tell(x='x' * 100000)", "more than 16 MiB of output"),
    ],
)
def test_it_ends_badly(ask, text: str, trouble: str) -> None:
    started = time.monotonic()
    answer = ask(text, 1.0 if "no end" in trouble else 30.0)
    assert answer.trouble is not None
    assert answer.trouble.startswith(trouble)
    assert answer.get("first") == 1
    assert answer.doing == "the deed"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("text", ["not json", "[1]", "null", '"x"', '{"half": '])
def test_what_it_says_is_not_trusted(ask, text: str) -> None:
    answer = ask(f"out.write({text!r}); out.flush(); sys.exit(0)")
    assert answer.trouble == "it ended without an answer"
    assert answer.get("first") == 1


@pytest.mark.parametrize("end", ["time.sleep(60)", "os._exit(0)", "os._exit(1)"])
def test_what_it_started_ends_with_it(ask, end: str) -> None:
    answer = ask(
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n" + f"tell(pid=p.pid)\n{end}", 1.0
    )
    pid = answer.get("pid")
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, 9)
    raise AssertionError("it lives")


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "garbage"])
def test_no_interpreter(ask, tmp_path: Path, kind: str) -> None:
    exe = tmp_path / "exe"
    if kind == "folder":
        exe.mkdir()
    elif kind != "missing":
        exe.write_bytes(b"hello\n" if kind == "text" else b"\x7fELF garbage")
        exe.chmod(0o755)
    answer = ask("", python=exe)
    assert answer.trouble
    assert answer.facts == {}


def test_a_tree_comes_first(ask, tmp_path: Path) -> None:
    tree = tmp_path / "a tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm" / "__init__.py").write_text("")
    text = "import vllm; tell(file=vllm.__file__); tell(doing=None, done=True)"
    assert ask(text, tree=tree).get("file") == str(tree / "vllm" / "__init__.py")
    assert not list(tree.rglob("*.pyc"))
