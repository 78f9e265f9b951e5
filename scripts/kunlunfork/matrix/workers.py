"""pytest in an engine environment: how it is started, what it reports, what happens when it dies or hangs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.matrix.environment import Engine, clean_environ

# A worker that says nothing for this long (seconds) hangs. The slowest step is upstream's run of all cases of a share.
PATIENCE = 900.0
_TICK = 0.1

NOTHING_SELECTED = 5


@dataclass
class Worker:
    """One pytest process. `found`: the tests that it collected; `collected`: those that it was given to run."""

    out: Path
    log: Path
    pick: Path
    child: subprocess.Popen[bytes] | None = None
    found: list[dict[str, Any]] | None = None
    collected: list[dict[str, Any]] | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: str | None = None
    heard: float = 0.0
    _read: int = 0
    _told: int = 0

    def poll(self) -> bool:
        """Take in what it wrote; whether there was something."""
        if not self.out.is_file():
            return False
        with self.out.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            report = json.loads(line)
            if "collected" in report:
                self.found = report["collected"]
            else:
                self.reports[report["test"]] = report
        return bool(whole)

    def give(self, tests: Sequence[dict[str, Any]]) -> None:
        """Say which of the tests it is to run; it waits for that."""
        self.collected = list(tests)
        written = self.pick.with_name(f"{self.pick.name}.new")
        written.write_text(json.dumps([test["test"] for test in tests]), encoding="utf-8")
        written.replace(self.pick)

    def fresh(self) -> list[dict[str, Any]]:
        """The reports since the last call, as they came, each with what was collected about its test."""
        about = {test["test"]: test for test in self.collected or ()}
        new = list(self.reports.values())[self._told :]
        self._told = len(self.reports)
        return [{**about[report["test"]], **report} for report in new]

    def missing(self) -> list[dict[str, Any]]:
        """An error for each of its tests that never ended."""
        found = []
        trouble = self.trouble or "the worker ended"
        for test in self.collected or ():
            if test["test"] not in self.reports:
                # The first one without a report is the one that it died in.
                found.append({**test, "outcome": "error", "message": trouble})
                trouble = "not run: the worker had ended"
        return found


def environ(engine: Engine, path: Sequence[Path], extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child. `path` goes before the environment's own packages."""
    values = clean_environ()
    # Bytecode of the trees is worth keeping: they are imported again and again.
    values.pop("PYTHONDONTWRITEBYTECODE", None)
    values.update(
        PYTHONPATH=os.pathsep.join(str(p) for p in path),
        # Each worker has a core for itself.
        OMP_NUM_THREADS="1",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        VLLM_LOGGING_LEVEL="ERROR",
        **extra,
    )
    return values


def command(engine: Engine, tests: Path, arguments: Sequence[str]) -> list[str]:
    options = ("-p", "matrix_plugin", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=line")
    return [str(engine.python), "-m", "pytest", *options, *arguments, str(tests)]


def start(worker: Worker, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
    share = {
        "KUNLUN_MATRIX_OUT": str(worker.out),
        "KUNLUN_MATRIX_PICK": str(worker.pick),
        "KUNLUN_MATRIX_PARENT": str(os.getpid()),
    }
    with worker.log.open("wb") as log:
        worker.child = subprocess.Popen(
            argv, cwd=folder, env={**env, **share}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    worker.heard = time.monotonic()


def watch(workers: Sequence[Worker], shown: Callable[[int], None], until: Callable[[], bool]) -> None:
    """Follow running workers until they have ended, or `until` says so. Ends those that hang.

    shown: called with the number of tests that have ended, after each look; the last time when all was taken in.
    """
    while True:
        for worker in workers:
            assert worker.child is not None
            ended = worker.child.poll() is not None
            now = time.monotonic()
            if worker.poll():
                worker.heard = now
            if ended and worker.child.returncode not in (0, 1, NOTHING_SELECTED) and worker.trouble is None:
                worker.trouble = _fate(worker.child.returncode)
            elif not ended and now - worker.heard > PATIENCE:
                worker.trouble = f"no answer for {PATIENCE:.0f} s"
                worker.child.kill()
        shown(sum(len(w.reports) for w in workers))
        if until() or all(w.child is not None and w.child.poll() is not None for w in workers):
            for worker in workers:
                worker.poll()
            shown(sum(len(w.reports) for w in workers))
            return
        time.sleep(_TICK)


def stop(workers: Sequence[Worker]) -> None:
    """End those that run, and wait for them."""
    for worker in workers:
        if worker.child is not None and worker.child.poll() is None:
            worker.child.terminate()
    for worker in workers:
        if worker.child is None:
            continue
        try:
            worker.child.wait(5)
        except subprocess.TimeoutExpired:
            worker.child.kill()
            worker.child.wait()


def check_collected(workers: Sequence[Worker]) -> None:
    """Raises `ForkError` where a worker ended before it knew the tests."""
    for worker in workers:
        if worker.found is not None:
            continue
        assert worker.child is not None
        code = worker.child.poll()
        tail = worker.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-20:]
        raise ForkError("the parity tests cannot be collected", details=tail, found=f"exit code {code}")


def _fate(code: int) -> str:
    return f"the worker was killed by signal {-code}" if code < 0 else f"the worker ended with exit code {code}"
