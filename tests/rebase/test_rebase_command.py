"""The verb: what it prints, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from rebasekit import World, lines

from kunlunfork import cli, errors

A = b"vllm/a.py"
BASE = lines("one", "two", "three", count=12)
EDITED = BASE.replace(b"two_6 = x + 6", b"two_6 = x - 6")
UPSTREAM = BASE.replace(b"two_6 = x + 6", b"two_6 = [x]")


@pytest.fixture
def made(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("KUNLUNFORK_CACHE", str(world.folder / "cache"))
    monkeypatch.setenv("KUNLUNFORK_REPO", str(world.clone.root))
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {A: b"import os\n" + BASE})
    world.release("1.2", {A: UPSTREAM})
    return world


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, object], str]:
    code = cli.run(["rebase", *args, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_done(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, body, _ = run(capsys, "--onto", "1.1")
    assert (code, body["ok"]) == (errors.OK, True)
    result = body["result"]
    assert isinstance(result, dict)
    assert result["state"] == "done"
    assert result["releases"] == ["1.1"]
    assert result["written"] == ["patches/1.1/p.patch", "patches/1.1/series", "patches/1.1/pin.toml"]
    [patch] = result["patches"]
    assert (patch["name"], patch["outcome"], patch["carried"]) == ("p.patch", "moved", True)
    [step] = patch["steps"]
    assert step["hunks"] == [{"path": "vllm/a.py", "line": 23, "new_line": 24, "kind": "moved"}]


def test_stopped_and_on(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, body, _ = run(capsys, "--onto", "1.2")
    assert (code, body["ok"]) == (errors.CONFLICT, False)
    result, error = body["result"], body["error"]
    assert isinstance(result, dict) and isinstance(error, dict)
    assert result["stop"] == {"patch": "p.patch", "version": "1.2"}
    assert Path(result["work"]) == made.session.work
    assert error["details"] == ["vllm/a.py: content: patch and vLLM 1.2 change the same lines"]
    assert run(capsys, "--status")[0] == errors.CONFLICT
    assert run(capsys, "--continue")[0] == errors.CONFLICT
    assert run(capsys, "--onto", "1.1")[0] == errors.CONFLICT
    made.work(A).write_bytes(BASE.replace(b"two_6 = x + 6", b"two_6 = [-x]"))
    code, body, _ = run(capsys, "--continue")
    # Upstream changed the function that the patch edits: merged or not, somebody has to say that it is right.
    result, error = body["result"], body["error"]
    assert isinstance(result, dict) and isinstance(error, dict)
    assert (code, result["state"], result["clean"], result["open"]) == (errors.CONFLICT, "done", False, ["vllm.a:two"])
    assert error["details"] == ["vllm.a:two: body"]
    assert run(capsys, "--status")[0] == errors.USER
    say = ["drift", "--from", "1.0", "--to", "1.2"]
    assert cli.run(say) == errors.CONFLICT
    assert cli.run([*say, "--ack", "vllm.a:two", "--why", "the list is what it should be"]) == errors.OK
    assert cli.run(say) == errors.OK
    assert "vouched for, 0 open" in capsys.readouterr().out


def test_the_text_fits_and_something_else_changed(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    made.release("1.3", {A: BASE.replace(b"two_2 = x + 2", b"two_2 = x - 2")})
    code, body, _ = run(capsys, "--onto", "1.3", "--leap", "--dry-run")
    result, error = body["result"], body["error"]
    assert isinstance(result, dict) and isinstance(error, dict)
    assert (code, result["state"], result["clean"], result["open"]) == (errors.CONFLICT, "whole", False, ["vllm.a:two"])
    assert error["fix"] == "see: kunlunfork drift --from 1.0 --to 1.3 --long"


def test_skip_and_abort(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = made.digest()
    assert run(capsys, "--onto", "1.2")[0] == errors.CONFLICT
    assert run(capsys, "--abort")[0] == errors.OK
    assert made.digest() == before
    assert run(capsys, "--onto", "1.2")[0] == errors.CONFLICT
    code, body, _ = run(capsys, "--skip", "--why", "not needed")
    assert code == errors.OK
    assert isinstance(body["result"], dict)
    assert body["result"]["skipped"] == [{"patch": "p.patch", "version": "1.2", "why": "not needed"}]


@pytest.mark.parametrize("onto", ["1.1", "1.2"])
def test_a_dry_run_writes_nothing(made: World, capsys: pytest.CaptureFixture[str], onto: str) -> None:
    before = made.digest()
    code, body, _ = run(capsys, "--onto", onto, "--dry-run")
    assert code == (errors.OK if onto == "1.1" else errors.CONFLICT)
    assert isinstance(body["result"], dict)
    assert body["result"]["state"] == ("whole" if onto == "1.1" else "conflict")
    assert made.digest() == before


def test_what_people_read(made: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rebase", "--onto", "1.2"]) == errors.CONFLICT
    out, _ = capsys.readouterr()
    assert "vLLM 1.0 -> 1.1 -> 1.2" in out
    assert "p.patch" in out
    assert "1.2: content conflict in vllm/a.py" in out


def test_another_series(made: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other, out = tmp_path / "other", tmp_path / "out"
    other.mkdir()
    for name in ("p.patch", "series"):
        (other / name).write_bytes((made.patches / name).read_bytes())
    before = made.digest()
    args = ("--series", str(other), "--from", "1.0", "--onto")
    assert run(capsys, *args, "1.1")[0] == errors.OK
    assert not out.exists()
    code, body, _ = run(capsys, *args, "1.2", "--out", str(out))
    assert code == errors.CONFLICT
    assert isinstance(body["error"], dict)
    assert body["error"]["fix"].endswith(f"kunlunfork rebase --continue --out '{out}'")
    assert run(capsys, "--skip", "--out", str(out))[0] == errors.OK
    assert [p.name for p in out.iterdir()] == ["series"]
    assert run(capsys, *args, "1.1", "--out", str(out))[0] == errors.USER, "the folder is not empty"
    assert made.digest() == before


def _clone_of_vllm(made: World, folder: Path) -> Path:
    """A repository with the releases as commits, tagged, and a branch beyond the last one."""
    subprocess.run(["git", "init", "-q", folder], check=True)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name, data in (("v1.0.0", BASE), ("v1.1.0", b"import os\n" + BASE), ("main2", b"import sys\n" + BASE)):
        (folder / "vllm").mkdir(exist_ok=True)
        (folder / "vllm" / "a.py").write_bytes(data)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", name], check=True)
        subprocess.run([*git, "branch" if name == "main2" else "tag", name], check=True)
    return folder


def test_a_repository_of_something_else(made: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "x"], check=True)
    git = ["git", "-C", str(tmp_path / "x"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    before = made.digest()
    code, body, _ = run(capsys, "--onto", f"git:{tmp_path / 'x'}@HEAD")
    assert (code, body["error"]["message"]) == (errors.USER, f"{tmp_path / 'x'} has no folder vllm at HEAD")  # type: ignore[index]
    assert made.digest() == before


def test_a_commit_that_is_no_release(made: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = _clone_of_vllm(made, tmp_path / "vllm clone")
    before = made.digest()
    code, body, _ = run(capsys, "--onto", f"git:{where}@main2")
    assert code == errors.OK
    result = body["result"]
    assert isinstance(result, dict)
    assert (result["state"], result["releases"][0]) == ("whole", "1.1")
    assert result["releases"][1].startswith("main2@")
    assert made.digest() == before
    assert run(capsys, "--onto", f"git:{where}@main2", "--leap")[1]["result"]["releases"] == [result["releases"][1]]  # type: ignore[index]
    out = tmp_path / "out"
    assert run(capsys, "--onto", f"git:{where}@main2", "--out", str(out))[0] == errors.OK
    assert b"\n+    two_6 = x - 6\n" in (out / "p.patch").read_bytes()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), errors.USAGE),
        (("--onto", "1.1", "--continue"), errors.USAGE),
        (("--skip", "--abort"), errors.USAGE),
        (("--continue", "--from", "1.0"), errors.USAGE),
        (("--onto", "1.1", "--why", "x"), errors.USAGE),
        (("--onto", "1.1", "--rename", "a"), errors.USAGE),
        (("--onto", "1.1", "--rename", "a/=b"), errors.USAGE),
        (("--onto", "1.1", "--rename", "../a=b"), errors.USAGE),
        (("--onto", "1.1", "--rename", "::Old=New"), errors.USAGE),
        (("--onto", "nonsense"), errors.USER),
        (("--onto", "1.0"), errors.USER),
        (("--onto", "0.9"), errors.USER),
        (("--onto", "9.9"), errors.USER),
        (("--onto", "9.9", "--offline"), errors.USER),
        (("--onto", "1.1", "--from", "0.5"), errors.USER),
        (("--onto", "1.1", "--series", "nowhere"), errors.USER),
        (("--onto", "1.1", "--series", "nowhere", "--from", "1.0"), errors.USER),
        (("--onto", "git:nowhere@main"), errors.USER),
        (("--onto", "git:@"), errors.USER),
        (("--onto", "git:."), errors.USER),
        (("--onto", "git:.@nosuchbranch"), errors.USER),
    ],
)
def test_refused(made: World, args: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = made.digest()
    found, body, _ = run(capsys, *args)
    assert (found, body["ok"]) == (code, False)
    assert made.digest() == before
