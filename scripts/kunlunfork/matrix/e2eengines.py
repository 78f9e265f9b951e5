"""Processes with engines for the tier `e2e`: jobs go in, answers come out, and what fails or hangs is ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.workers import environ

FORK, V1, V2 = "fork", "v1", "v2"
# Seconds without an answer after which an engine counts as hanging. The interpreter takes seconds for one step.
PATIENCE: Mapping[str, float] = {FORK: 300.0, V1: 300.0, V2: 900.0}
_TAIL = 600


class Lost(Exception):
    """The process failed, died or hung; `told` says how. It has been ended."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


@dataclass(frozen=True)
class Place:
    """Where engines run. `tree`: of the fork; `parity`: the folder of the parity tests; `models`: of theirs."""

    engine: Engine
    tree: Path
    parity: Path
    models: Path

    def environment(self, kind: str) -> dict[str, str]:
        path = {FORK: (self.tree,), V1: (), V2: (self.engine.triton,)}[kind]
        extra = {"VLLM_USE_V2_MODEL_RUNNER": "0" if kind == V1 else "1", "PYTHONHASHSEED": "0", "DO_NOT_TRACK": "1"}
        return environ(self.engine, (*path, self.parity), extra)


class Server:
    """A process of `tests/parity/e2e/serve.py`, started with the first job; another one after it was lost."""

    def __init__(self, place: Place, kind: str, log: Path, patience: float | None = None) -> None:
        self.kind = kind
        self._place = place
        self._log = log
        self._patience = PATIENCE[kind] if patience is None else patience
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._data = b""
        self._closed = False
        # Closed from another thread while a process starts, that one is ended, too.
        self._lock = threading.Lock()

    def job(self, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The answers of a job as they come, without the last one, which says that it is done.

        Raises:
            Lost: before that.
        """
        try:
            if self._child is None:
                self._start()
            assert self._child is not None and self._child.stdin is not None
            try:
                self._child.stdin.write((json.dumps(job) + "\n").encode())
                self._child.stdin.flush()
            except OSError:
                raise Lost(self._fate()) from None
            while True:
                answer = self._answer()
                if "error" in answer:
                    raise Lost(str(answer["error"]))
                if "done" in answer:
                    return
                yield answer
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """End the process, for good. May be called from another thread than `job`, which then raises `Lost`."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                _kill(self._child)

    def _start(self) -> None:
        reading, writing = os.pipe()
        place = self._place
        argv = [str(place.engine.python), "-m", "e2e.serve", str(writing), str(place.models), self.kind]
        try:
            with self._lock, self._log.open("ab") as log:
                if self._closed:
                    raise Lost("interrupted")
                # A group of its own: ranks that the engine starts end with it.
                self._child = subprocess.Popen(
                    argv, cwd=self._log.parent, env=place.environment(self.kind), stdin=subprocess.PIPE, stdout=log,
                    stderr=log, pass_fds=(writing,), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._pipe, self._data = reading, b""

    def _answer(self) -> dict[str, Any]:
        limit = time.monotonic() + self._patience
        while b"\n" not in self._data:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                raise Lost(f"no answer for {self._patience:.0f} s")
            read = os.read(self._pipe, 1 << 16)
            if not read:
                raise Lost(self._fate())
            self._data += read
        line, _, self._data = self._data.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fate(self) -> str:
        if self._closed:
            return "interrupted"
        assert self._child is not None
        try:
            code = self._child.wait(10)
        except subprocess.TimeoutExpired:
            return "the process closed its answers"
        tail = self._log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"the process {how}\n{tail}"

    def renew(self) -> None:
        """The next job finds another process."""
        self._end()

    def _end(self) -> None:
        child = self._child
        if child is None:
            return
        _kill(child)
        with self._lock:
            # From here on its id may be another process's.
            self._child = None
        child.wait()
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        os.close(self._pipe)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def make_models(engine: Engine, parity: Path, folder: Path, log: Path) -> str | None:
    """Write the models into `folder`, whole or not at all; what went wrong, if anything did."""
    temporary = folder.with_name(f"{folder.name}.new")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    with log.open("wb") as out:
        command: Sequence[str] = [str(engine.python), "-m", "e2e.models", str(temporary)]
        child = subprocess.run(
            command, env=environ(engine, (parity,), {}), stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if child.returncode:
        return log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
    temporary.rename(folder)
    return None
