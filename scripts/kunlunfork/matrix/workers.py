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
    """One pytest process. `share`: the site modules whose tests it runs, `*` for those of none."""

    share: tuple[str, ...]
    out: Path
    log: Path
    child: subprocess.Popen[bytes] | None = None
    collected: list[dict[str, Any]] | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    trouble: str | None = None
    heard: float = 0.0
    _read: int = 0

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
                self.collected = report["collected"]
            elif report["outcome"] != "passed" or report["test"] not in self.reports:
                # A test may report twice: its call, and a teardown that failed.
                self.reports[report["test"]] = report
        return bool(whole)

    def lines(self, *, missing: bool) -> list[dict[str, Any]]:
        """The reports, in the order of the tests; with `missing` also one for each test that never ended."""
        found = []
        trouble = self.trouble or "the worker ended"
        for test in self.collected or ():
            report = self.reports.get(test["test"])
            if report is None:
                if not missing:
                    continue
                # The first one without a report is the one that it died in.
                report = {"outcome": "error", "message": trouble}
                trouble = "not run: the worker had ended"
            found.append({**test, **report})
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
    share = {"KUNLUN_MATRIX_OUT": str(worker.out), "KUNLUN_MATRIX_ONLY": ",".join(worker.share)}
    with worker.log.open("wb") as log:
        worker.child = subprocess.Popen(
            argv, cwd=folder, env={**env, **share}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    worker.heard = time.monotonic()


def watch(workers: Sequence[Worker], shown: Callable[[int], None], until: Callable[[], bool]) -> None:
    """Follow running workers until they have ended, or `until` says so. Ends those that hang."""
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
    """Raises `ForkError` where a worker ended before it knew its tests."""
    for worker in workers:
        assert worker.child is not None
        code = worker.child.poll()
        if worker.collected is not None and (code in (None, 0, 1, NOTHING_SELECTED) or worker.reports):
            continue
        tail = worker.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-20:]
        raise ForkError("the parity tests cannot be collected", details=tail, found=f"exit code {code}")


def _fate(code: int) -> str:
    return f"the worker was killed by signal {-code}" if code < 0 else f"the worker ended with exit code {code}"


def shares(modules: Sequence[str], seconds: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
    """Divide the site modules (and `*`) among `count` workers: the longest first, to whom has least.

    seconds: what each took the last time; one that is not in it counts as an average one.
    """
    known = [seconds[m] for m in modules if m in seconds]
    usual = sum(known) / len(known) if known else 1.0
    loads = [0.0] * count
    found: list[list[str]] = [[] for _ in range(count)]
    for module in sorted(modules, key=lambda m: (-seconds.get(m, usual), m)):
        least = loads.index(min(loads))
        found[least].append(module)
        loads[least] += seconds.get(module, usual)
    return [tuple(share) for share in found if share]
