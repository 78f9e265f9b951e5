"""One file of upstream's tests in one tree: a pytest process with a time limit, and what each test came to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.workers import environ

NEVER = "not collected"


@dataclass(frozen=True)
class Told:
    """What a test came to: passed, failed, skipped, or how its process ended in it."""

    outcome: str
    seconds: float
    message: str

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Processes:
    """Starts pytest processes, and ends all that run when the block does."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running)
        for child in running:
            _end(child)

    def run(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, limit: float) -> str | None:
        """Run to the end; what went wrong with the process itself, if anything did."""
        with log.open("wb") as out, self._lock:
            if self._closed:
                return "interrupted"
            # A group of its own: engines that tests start end with it.
            child = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            self._running.add(child)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            return f"took more than {limit:.0f} s"
        finally:
            _end(child)
            with self._lock:
                self._running.discard(child)
        if code < 0:
            return f"the process was killed by signal {-code}"
        # 0: all passed, 1: some failed, 2: a file cannot be imported, 5: nothing was collected.
        return None if code in (0, 1, 2, 5) else f"the process ended with exit code {code}"


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def command(engine: Engine, file: str) -> list[str]:
    options = ("-p", "upstream_plugin", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=no")
    return [str(engine.python), "-m", "pytest", *options, file]


def variables(engine: Engine, path: Sequence[Path], out: Path) -> dict[str, str]:
    return environ(engine, path, {"KUNLUN_UPSTREAM_OUT": str(out), "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"})


def read(out: Path, trouble: str | None) -> dict[str, Told]:
    """What the plugin wrote. The test in which a process ended is told to have failed by that."""
    found: dict[str, Told] = {}
    begun: str | None = None
    for line in _lines(out):
        if "started" in line:
            begun = str(line["started"])
            continue
        test = str(line["test"])
        found[test] = Told(str(line["outcome"]), float(str(line["seconds"])), str(line["message"]))
        begun = None if test == begun else begun
    if begun is not None and begun not in found:
        found[begun] = Told("error", 0.0, trouble or "the process ended in it")
    return found


def _lines(out: Path) -> Iterator[dict[str, object]]:
    if not out.is_file():
        return
    for data in out.read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # half a line of a process that was killed
            line = json.loads(data)
            if isinstance(line, dict):
                yield line
