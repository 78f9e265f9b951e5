# SPDX-License-Identifier: Apache-2.0
"""Runs parity tests against faulty copies of the fork, one after another, without starting again for each.

`kunlunfork matrix selftest` starts it and writes requests to it, one JSON line each:
`{"name", "root": folder that holds kunlun/, "tests": [...]}`; it answers each with one line,
`{"name", "outcome", "by", "message", "tests", "seconds"}`. A request runs in a forked child, which imports the fork and
the tests anew; torch, vLLM and upstream's runs of the cases are inherited. So the process must have one thread.

`tests` names `module:function` (all tests of that launcher), `module`, `bound/...` (the same, through upstream's
name under the settings of `KUNLUN_MATRIX_SETTINGS`), or a file of tests, `test_rng.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# Seconds for one request; what takes longer hangs.
LIMIT = 180.0
# They keep nothing of the fork, and their classes must stay the same: upstream's runs are made of them.
KEPT = {"harness", "compare", "interpreter", "nosync", "faults_server"}

# A fault that shows itself like this is a slip in its own text.
SLIPS = (SyntaxError, NameError, ImportError, UnboundLocalError)


class _Cases:
    """Upstream's runs, by launcher and case name; the cases of a seed are always the same."""

    def __init__(self, harness: Any) -> None:
        self.harness = harness
        self.runs: dict[tuple[str, str], Any] = {}

    def get(self, site: Any, case: Any) -> Any:
        key = (site.launcher, case.name)
        # Hypothesis draws others at each call.
        if key not in self.runs:
            return self.harness.run_upstream(site, case)
        return self.runs[key]

    def take(self, cells: list[Any], tests: list[str]) -> None:
        for site, case, backend in cells:
            key = (site.launcher, case.name)
            if backend == site.backends[0] and key not in self.runs and _covers(tests, site.launcher):
                self.runs[key] = self.harness.run_upstream(site, case)


def _covers(tests: list[str], launcher: str, prefix: str = "") -> bool:
    names = {test.removeprefix("bound/") for test in tests} if not prefix else set(tests)
    return not names.isdisjoint({prefix + launcher, prefix + launcher.partition(":")[0]})


class _Selection:
    """A pytest plugin: the tests of a request, the fast ones first, and the first that failed."""

    ORDER = ("test_signature", "test_parity", "test_bound")

    def __init__(self, tests: list[str]) -> None:
        self.tests = tests
        self.count = 0
        self.failed: dict[str, Any] | None = None

    def wanted(self, item: pytest.Item) -> bool:
        site = item.callspec.params.get("site") if hasattr(item, "callspec") else None
        if site is None:
            return Path(item.path).name in self.tests
        bound = getattr(item, "originalname", "") == "test_bound"
        return _covers(self.tests, site.launcher, "bound/" if bound else "")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def rank(item: pytest.Item) -> int:
            name = getattr(item, "originalname", "")
            return self.ORDER.index(name) if name in self.ORDER else len(self.ORDER)

        items[:] = sorted((item for item in items if self.wanted(item)), key=rank)
        self.count = len(items)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        if self.failed is None and call.excinfo is not None:
            error = call.excinfo.value
            self.failed = {
                "outcome": "broken" if isinstance(error, SLIPS) else "caught",
                "by": getattr(node, "name", str(node)),
                "message": call.excinfo.exconly()[:600],
            }


def _child(request: dict[str, Any], runs: _Cases, pipe: int) -> None:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    harness = runs.harness
    _forget()
    sys.path.insert(0, request["root"])
    harness.kunlun_package = lambda: "kunlun"
    harness._oracle = runs.get
    selection = _Selection(request["tests"])
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:logging", "--no-header", "--tb=no"]
    code = pytest.main([*options, *_files(request["tests"])], plugins=[selection])
    if selection.failed is not None:
        answer = selection.failed
    elif code == pytest.ExitCode.OK:
        answer = {"outcome": "survived", "by": None, "message": None}
    else:
        log.seek(0)
        tail = log.read().decode(errors="replace")[-2000:]
        answer = {"outcome": "broken", "by": None, "message": f"pytest ended with {code!r}\n{tail}"}
    os.write(pipe, json.dumps({**answer, "tests": selection.count}).encode())


def _files(tests: list[str]) -> list[str]:
    """The files of tests that can hold any of these."""
    names = {
        test if test.endswith(".py") else "test_bound.py" if test.startswith("bound/") else "test_ops.py"
        for test in tests
    }
    return [str(HERE / name) for name in sorted(names)]


def _forget() -> None:
    """Drop the fork and the tests from the imported modules."""
    for name, module in list(sys.modules.items()):
        mine = name not in KEPT and Path(getattr(module, "__file__", None) or "/").is_relative_to(HERE)
        if mine or name == "kunlun" or name.startswith("kunlun."):
            del sys.modules[name]


def _answer(request: dict[str, Any], runs: _Cases) -> dict[str, Any]:
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            _child(request, runs, writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    data = b""
    hangs = False
    while True:
        left = LIMIT - (time.monotonic() - began)
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            hangs = True
            os.kill(child, signal.SIGKILL)
            break
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if hangs:
        answer = {"outcome": "caught", "by": None, "message": f"no end after {LIMIT:.0f} s", "tests": 0}
    elif data:
        answer = json.loads(data)
    else:
        ended = os.waitstatus_to_exitcode(status)
        outcome = "caught" if ended < 0 else "broken"
        answer = {"outcome": outcome, "by": None, "message": f"the tests ended with {ended}", "tests": 0}
    return {"name": request["name"], **answer, "seconds": round(time.monotonic() - began, 3)}


def main(good: str) -> None:
    """Serve requests; `good` is the folder that holds the fork as it is."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, str(HERE))
    import interpreter

    interpreter.prepare()
    import harness

    sys.path.insert(0, good)
    harness.kunlun_package = lambda: "kunlun"
    cells = [cell.values for cell in importlib.import_module("test_ops").CELLS]
    runs = _Cases(harness)
    for line in sys.stdin:
        request = json.loads(line)
        runs.take(cells, request["tests"])
        if good in sys.path:
            sys.path.remove(good)
        print(json.dumps(_answer(request, runs)), file=answers, flush=True)
        sys.path.insert(0, good)


if __name__ == "__main__":
    main(sys.argv[1])
