"""The vLLM that pip installed: real wheel, real pip, real files of the release."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import REPO, VERSION, Upstream, digest
from test_cli import as_json

from kunlunfork import paths


@pytest.fixture(scope="session")
def wheel(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with real files of the release: those that the fork touches and some neighbours."""
    info = f"vllm-{VERSION}.dist-info"
    files = {os.fsdecode(p): d for p, (_, d) in upstream.files.items() if p.startswith(b"vllm/")}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    target = tmp_path_factory.mktemp("wheel") / f"vllm-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


@pytest.fixture
def python(tmp_path: Path, wheel: Path) -> Path:
    """The interpreter of an environment with that wheel."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    exe = env / "bin" / "python"
    command = [exe, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--compile", wheel]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
    return exe


def _pip(python: Path, *args: str) -> None:
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([python, "-m", "pip", *args], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_apply_status_verify_revert_uninstall(python: Path) -> None:
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    here = ("--site-packages", "--python", python)
    before = digest(site)

    code, body = as_json("apply", *here, "--repo", REPO)
    assert (code, body["result"]["action"]) == (0, "applied")
    assert body["result"]["tree"] == str(site.resolve())
    assert as_json("apply", *here, "--repo", REPO)[1]["result"]["action"] == "unchanged"
    assert as_json("status", *here, "--repo", REPO)[1]["result"]["state"] == "applied"
    assert as_json("verify", *here, "--repo", REPO)[1]["warnings"] == []
    evil = site / "vllm" / "evil.py"
    evil.touch()
    assert as_json("verify", *here, "--repo", REPO)[1]["warnings"] == ["not as released: vllm/evil.py (added)"]
    evil.unlink()
    _pip(python, "check")

    assert as_json("revert", *here)[0] == 0
    assert digest(site) == before

    as_json("apply", *here, "--repo", REPO)
    subprocess.run([python, "-m", "compileall", "-q", site / "vllm"], check=False, capture_output=True)
    _pip(python, "uninstall", "-y", "vllm")
    assert not (site / "vllm").exists()
    assert not list(site.glob("vllm*"))


def test_a_record_that_lies_is_found(python: Path) -> None:
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    as_json("apply", "--site-packages", "--python", python, "--repo", REPO)
    record = site / f"vllm-{VERSION}.dist-info" / "RECORD"
    record.write_bytes(record.read_bytes().replace(b"gpu_worker.py,sha256=", b"gpu_worker.py,sha256=AA"))
    code, body = as_json("verify", "--site-packages", "--python", python, "--repo", REPO)
    assert code == 1
    assert any("RECORD" in line and "gpu_worker.py" in line for line in body["error"]["details"])


def test_the_package_works_without_a_clone(tmp_path: Path, tree: Path) -> None:
    """The wheel of this project carries patches and overlay."""
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, REPO]
    subprocess.run(command, check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *_dependencies()])}
    outside = tmp_path / "outside"
    outside.mkdir()

    def kunlunfork(*args: str | Path) -> dict[str, object]:
        command = [sys.executable, "-m", "kunlunfork", *args, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=outside, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["result"]

    pins = kunlunfork("pins")
    assert str(pins["content"]).startswith(str(target))
    assert kunlunfork("lint", "--vllm", VERSION)["faults"] == 0
    assert kunlunfork("switches")["switches"]
    packaged = kunlunfork("apply", "--in-place", tree)
    assert packaged["action"] == "applied"
    clone = as_json("status", tree, "--repo", REPO)[1]["result"]
    assert clone["current"] is True, "the package ships the very bytes of the clone"
    assert paths.read_entry(tree, b"vllm/v1/worker/gpu/model_runner_v2.py") is not None
    kunlunfork("revert", tree)


def _dependencies() -> list[str]:
    """This interpreter's own packages, without the clone's."""
    return [p for p in sys.path if p.endswith("site-packages")]
