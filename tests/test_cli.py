from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import advice
import pytest
from support import REPO, VERSION

from kunlunfork import __version__, cli, errors
from kunlunfork.store import Base

JSON_KEYS = {"schema", "command", "ok", "result", "warnings", "error"}


def run(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "kunlunfork", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        check=False,
    )
    for line in (done.stdout + done.stderr).splitlines():
        name, _, text = line.strip().partition(": ")
        if name in ("fix", "next"):
            advice.check(text)
    return done


def as_json(*args: str | Path, cwd: Path | None = None) -> tuple[int, dict[str, Any]]:
    done = run(*args, "--json", cwd=cwd)
    body = json.loads(done.stdout)
    assert set(body) == JSON_KEYS
    assert body["schema"] == 1
    assert body["ok"] == (done.returncode == 0)
    assert (body["error"] is None) == body["ok"]
    return done.returncode, body


def test_the_readmes_first_commands(base: Base, tmp_path: Path) -> None:
    tree = tmp_path / f"vllm-{VERSION}-kunlun"
    code, body = as_json("apply", "--vllm", VERSION, "--offline", "--repo", REPO, cwd=tmp_path)
    assert code == 0
    assert body["command"] == "apply"
    assert body["result"]["action"] == "applied"
    assert body["result"]["tree"] == str(tree)
    assert as_json("status", cwd=tree / "vllm" / "v1")[1]["result"]["state"] == "applied"
    assert as_json("verify", tree)[1]["result"]["compared"] > base.files
    (tree / "vllm/__init__.py").write_text("# other\n")
    code, body = as_json("verify", tree)
    assert code == 0
    assert body["warnings"] == ["not as released: vllm/__init__.py"]
    (tree / "vllm/v1/worker/gpu_worker.py").write_text("# other\n")
    code, body = as_json("verify", tree)
    assert code == errors.USER
    assert body["error"]["details"] == ["vllm/v1/worker/gpu_worker.py: edited"]
    assert as_json("revert", tree)[0] == errors.CONFLICT


def test_exit_codes_and_messages(tree: Path, tmp_path: Path) -> None:
    for args in (
        ["apply"],
        ["apply", "--vllm"],
        ["apply", "--in-place"],
        ["apply", "--in-place", "--site-packages", tree],
        ["apply", "--vllm", VERSION, "--site-packages", tree],
        ["apply", "--vllm", VERSION, "--in-place", tree, "--source", "pypi"],
        ["status", "--python", "python3"],
        ["aply"],
        ["status", "--no-such"],
    ):
        done = run(*args)
        assert done.returncode == errors.USAGE, args
        assert "Traceback" not in done.stderr
    assert "did you mean apply?" in run("aply").stderr
    code, body = as_json("aply")
    assert (code, body["error"]["exit_code"]) == (errors.USAGE, errors.USAGE)
    for args in (
        ["status", tmp_path / "nothing"],
        ["status", tmp_path],
        ["revert", tree],
        ["verify", tree],
        ["apply", "--vllm", "9.9.9", tmp_path / "t"],
        ["apply", "--vllm", VERSION, "--repo", tmp_path, tmp_path / "t"],
        ["apply", "--vllm", VERSION, "--source", tmp_path / "nothing.whl", tmp_path / "t"],
        ["apply", "--site-packages", "--python", tmp_path / "no-python"],
    ):
        code, body = as_json(*args)
        assert code == errors.USER, (args, body)
        done = run(*args)
        assert done.returncode == errors.USER
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_status_outside_a_fork_tree(tmp_path: Path) -> None:
    done = run("status", cwd=tmp_path)
    assert done.returncode == errors.USER
    assert "kunlunfork status TREE" in done.stderr


def test_a_bug_is_reported_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kunlunfork.content.find", lambda repo: 1 / 0)
    assert cli.run(["pins", "--json"]) == errors.BUG
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["exit_code"] == errors.BUG
    assert "ZeroDivisionError" in err
    assert "This is a bug in kunlunfork" in err
    assert __version__ in err


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(repo: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("kunlunfork.content.find", interrupt)
    assert cli.run(["pins"]) == errors.INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignored", [False, True])
def test_terminated_is_interrupted_unless_ignored(number: signal.Signals, ignored: bool) -> None:
    code = (
        "import signal, sys; from kunlunfork import cli, content, errors\n"
        # nohup, under which the tests may run, ignores the one.
        f"signal.signal({int(number)}, signal.SIG_{'IGN' if ignored else 'DFL'})\n"
        "def find(repo):\n"
        f"    signal.raise_signal({int(number)})\n"
        "    raise errors.ForkError('went on')\n"
        "content.find = find; sys.argv = ['kunlunfork', 'pins']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (errors.USER if ignored else errors.INTERRUPTED), done.stderr
    assert ("went on" in done.stderr) == ignored


def test_what_libraries_want_done_at_the_end_is_done() -> None:
    code = (
        "import atexit, sys; from kunlunfork import cli\n"
        "atexit.register(print, 'ended', file=sys.stderr)\n"
        "sys.argv = ['kunlunfork', 'pins']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ended" in done.stderr


def test_a_reader_that_goes_away_is_no_bug() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kunlunfork", "switches", "--repo", REPO]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1  # click's, for a closed pipe


def test_help_imports_little() -> None:
    code = (
        "import sys; from kunlunfork import cli\nassert cli.run(['--help']) == 0\n"
        "heavy = {'requests', 'rich', 'git', 'unidiff', 'pypi_simple', 'hypothesis', 'filelock'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in cli.VERBS:
        assert f"  {verb}" in done.stdout


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert "Usage: kunlunfork" in done.stdout


def test_pins() -> None:
    code, body = as_json("pins", "--repo", REPO)
    assert code == 0
    assert VERSION in [p["version"] for p in body["result"]["pins"]]
    assert VERSION in run("pins", "--repo", REPO).stdout


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    code, body = as_json("switches", "--repo", REPO)
    assert code == 0
    names = [s["name"] for s in body["result"]["switches"]]
    assert {"KUNLUN_HOSTVEC", "KUNLUN_POSTUPD3", "KUNLUN_REJ_XPU", "KUNLUN_KERNELS"} <= set(names)
    shell = run("switches", "--shell", "--repo", REPO).stdout
    assert "export KUNLUN_HOSTVEC=1\n" in shell
    done = subprocess.run(
        ["sh", "-euc", f'{shell}\nexec "$0" -m kunlunfork switches --shell --repo "$1"', sys.executable, REPO],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == shell, "what --shell prints can be read back"
    assert {(s["value"], s["default"]) for s in body["result"]["switches"]} == {
        (word, word) for word in ("on", "off", "auto")
    }
    monkeypatch.setenv("KUNLUN_HOSTVEX", "0")
    code, body = as_json("switches", "--repo", REPO)
    assert code == errors.USER
    assert "KUNLUN_HOSTVEC" in body["error"]["details"][0]
    assert body["error"]["fix"].endswith("unset KUNLUN_HOSTVEX")
    monkeypatch.setenv("KUNLUN_KERNELS", "cuda")
    assert as_json("switches")[1]["error"]["fix"].endswith("unset KUNLUN_HOSTVEX KUNLUN_KERNELS")


@pytest.mark.parametrize(
    ("given", "off", "implied"),
    [
        ({"KUNLUN_HOSTVEC": "0"}, {"HOSTVEC"}, {"HOSTVEC_POSTUPDATE", "POSTUPD3"}),
        ({"KUNLUN_HOSTVEC_POSTUPDATE": "off"}, {"HOSTVEC_POSTUPDATE"}, {"POSTUPD3"}),
        ({"KUNLUN_HOSTVEC": "no", "KUNLUN_POSTUPD3": "0"}, {"HOSTVEC", "POSTUPD3"}, {"HOSTVEC_POSTUPDATE"}),
        ({"KUNLUN_POSTUPD3": "FALSE"}, {"POSTUPD3"}, set()),
    ],
)
def test_switches_that_others_imply_are_left_to_them(given: dict[str, str], off: set[str], implied: set[str]) -> None:
    def tool(environ: dict[str, str], *args: str, before: str = "") -> str:
        line = f'{before}\nexec "$0" -m kunlunfork switches "$@"'
        command = ["sh", "-euc", line, sys.executable, *args, "--repo", str(REPO)]
        return subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **environ}, check=True
        ).stdout  # fmt: skip

    lines = set(tool(given, "--shell").splitlines())
    assert {x for x in lines if x.startswith("unset")} == {f"unset KUNLUN_{name}" for name in implied}
    assert {x for x in lines if x.endswith("=0")} == {f"export KUNLUN_{n}=0" for n in {*off, "UPSTREAM_FIXES"}}
    # Another environment is brought to the same.
    text = "\n".join(sorted(lines))
    assert tool({"KUNLUN_POSTUPD3": "1", "KUNLUN_HOSTVEC_POSTUPDATE": "1"}, before=text) == tool(given)
    values = {line.split()[0]: line.split()[1] for line in tool(given).splitlines()[1:]}
    assert {n for n, v in values.items() if v == "off"} == {
        f"KUNLUN_{n}" for n in (*off, *implied, "UPSTREAM_FIXES")
    }  # fmt: skip


def test_lint_of_this_repository(bases: dict[str, Base]) -> None:
    code, body = as_json("lint", "--repo", REPO)
    assert body["result"]["findings"] == []
    assert code == 0


def test_lint_finds_and_says(small_content: Any) -> None:
    (small_content.patches / VERSION / "series").write_text("missing.patch\n")
    code, body = as_json("lint", "--repo", small_content.root)
    assert code == errors.USER
    assert body["result"]["faults"] > 0
    assert body["error"] is not None
    done = run("lint", "--repo", small_content.root)
    assert "missing.patch" in done.stdout


def test_cache_verbs(base: Base, tmp_path: Path) -> None:
    code, body = as_json("cache", "ls")
    assert code == 0
    assert VERSION in [b["version"] for b in body["result"]["bases"]]
    assert body["command"] == "cache ls"
    assert as_json("cache", "export", tmp_path / "x", "--vllm", VERSION, "--offline", "--repo", REPO)[0] == 0
    assert as_json("cache", "import", tmp_path / "x", "--repo", REPO)[1]["result"]["versions"] == [VERSION]
    assert as_json("cache", "prune", "--dry-run", "--repo", REPO)[0] == 0
