"""Where a Python interpreter looks for installed packages; none of their code runs to find it out."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kunlunfork.errors import ForkError

_TIMEOUT = 30.0  # seconds; a cold start from a network file system takes several
_MOST_OUTPUT = 1 << 18  # bytes

# Repeats what site.py does at start-up, less the .pth files, which can hold code. Any Python 3 runs it.
# sys.prefix is set because Debian's getsitepackages tells a virtual environment by it.
_PROBE = """
import json, os, site, sys
here = os.path.dirname(os.path.abspath(sys.executable))
prefix, venv, system = os.path.dirname(here), False, True
for folder in (here, prefix):
    config = os.path.join(folder, "pyvenv.cfg")
    if os.path.isfile(config):
        venv = True
        with open(config, encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                key, equals, value = line.partition("=")
                if equals and key.strip().lower() == "include-system-site-packages":
                    system = value.strip().lower() == "true"
        break
found = []
if venv:
    sys.prefix = sys.exec_prefix = prefix
    found += site.getsitepackages([prefix])
if system:
    if not os.environ.get("PYTHONNOUSERSITE") and os.getuid() == os.geteuid() and os.getgid() == os.getegid():
        found.append(site.getusersitepackages())
    found += site.getsitepackages([sys.base_prefix, sys.base_exec_prefix])
version = "%d.%d.%d" % sys.version_info[:3]
print()
print(json.dumps({"executable": sys.executable, "version": version, "folders": found}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter: its executable as it names itself, its version (`3.12.1`), its site folders.

    The folders exist, differ, and come in the order in which an import searches them.
    """

    executable: Path
    version: str
    folders: tuple[Path, ...]


def probe(python: Path | None = None) -> Interpreter:
    """Ask an interpreter for its site folders.

    Args:
        python: a path, or a bare name to look up on PATH; None for the interpreter that runs this.

    Raises:
        ForkError: it is missing, cannot be started, is no Python 3, does not answer in time.
    """
    executable = _executable(python)
    answer = _answer(executable)
    try:
        said = json.loads(answer.strip().rpartition(b"\n")[2])
        version, folders = said["version"], [Path(folder) for folder in said["folders"]]
        named = Path(said["executable"])
        if not isinstance(version, str):
            raise TypeError("version is not text")
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise _not_python(executable, _excerpt(answer) or "no output") from e
    distinct: dict[Path, Path] = {}
    for folder in folders:
        if folder.is_dir():
            # lib64 is often a link to lib.
            distinct.setdefault(folder.resolve(), folder)
    return Interpreter(named, version, tuple(distinct.values()))


def _not_python(executable: Path, found: str) -> ForkError:
    return ForkError(
        f"{executable} is not a usable Python interpreter",
        found=found,
        expected="an interpreter of Python 3",
        fix="name one with --python EXE, such as --python .venv/bin/python",
    )


def _executable(python: Path | None) -> Path:
    """An absolute path. Links are kept: a virtual environment is recognised by what lies beside its link."""
    if python is None:
        if not sys.executable:
            raise ForkError("this interpreter does not know its own path", fix="name it with --python EXE")
        return Path(sys.executable)
    if len(python.parts) == 1 and not python.exists():
        on_path = shutil.which(str(python))
        if on_path is None:
            raise ForkError(f"{python} is neither a file here nor a command on PATH", fix="name it with --python EXE")
        python = Path(on_path)
    python = Path(os.path.abspath(python))  # noqa: PTH100  (Path.absolute keeps `..`, resolve follows links)
    if python.is_dir():
        inner = python / "bin" / "python"
        fix = f"--python {shlex.quote(str(inner))}" if inner.exists() else None
        raise ForkError(f"{python} is a folder", expected="the interpreter itself", fix=fix)
    if not python.exists():
        link = f"a link to {python.resolve()}, which is not there" if python.is_symlink() else None
        raise ForkError(f"{python} does not exist", found=link, fix="name an interpreter with --python EXE")
    return python


def _answer(executable: Path) -> bytes:
    """What the probe prints when `executable` runs it."""
    # -I and -S keep the environment, the user and every .pth file out; -B leaves no bytecode behind.
    args = [str(executable), "-I", "-S", "-B", "-c", _PROBE]
    try:
        child = subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as e:
        raise _not_python(executable, e.strerror or str(e)) from e
    try:
        out, err = _collect(child, executable)
    except BaseException:
        # The whole session, so that what a wrapper script started ends too. Nobody has waited for the child yet,
        # so its id cannot belong to another.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    finally:
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if child.returncode:
        # The first line says what a command dislikes, the last one what a traceback is about.
        lines = err.strip().splitlines() or [b""]
        said = _excerpt(lines[-1 if lines[0].startswith(b"Traceback") else 0])
        raise _not_python(executable, f"exit status {child.returncode}" + (f", {said}" if said else ""))
    return out


def _collect(child: subprocess.Popen[bytes], executable: Path) -> tuple[bytes, bytes]:
    """Both outputs of `child` at its end, within limits of time and size."""
    deadline = time.monotonic() + _TIMEOUT
    chunks: dict[object, list[bytes]] = {child.stdout: [], child.stderr: []}
    total = 0
    with selectors.DefaultSelector() as selector:
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _not_python(executable, f"no answer within {_TIMEOUT:g} seconds")
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                chunks[key.fileobj].append(chunk)
                total += len(chunk)
            if total > _MOST_OUTPUT:
                raise _not_python(executable, f"more than {_MOST_OUTPUT} bytes of output")
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as e:
        raise _not_python(executable, f"no end within {_TIMEOUT:g} seconds") from e
    return b"".join(chunks[child.stdout]), b"".join(chunks[child.stderr])


def _excerpt(data: bytes) -> str:
    text = data.decode(errors="replace").strip()
    return "".join(c if c.isprintable() else " " for c in text[:120])
