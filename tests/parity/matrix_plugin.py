# SPDX-License-Identifier: Apache-2.0
"""pytest as a worker of `kunlunfork matrix`: takes its share of the tests, and writes a JSON line for each that ends.

`KUNLUN_MATRIX_OUT` names the file. Its first line lists what was collected. The worker then waits for the file
`KUNLUN_MATRIX_PICK`, a JSON list of the tests that are its share. It ends when its parent is no longer the process
`KUNLUN_MATRIX_PARENT`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OUT = Path(os.environ["KUNLUN_MATRIX_OUT"])
PICK = Path(os.environ["KUNLUN_MATRIX_PICK"])
# More of a message than this helps nobody, and results are kept.
MESSAGE = 2000
# The worker may outlive its parent before it gets here.
PARENT = int(os.environ["KUNLUN_MATRIX_PARENT"])
_LINE = pytest.StashKey[dict[str, Any]]()


def _write(line: dict[str, Any]) -> None:
    with OUT.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def _describe(item: pytest.Item) -> dict[str, Any]:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    site, case = params.get("site"), params.get("case")
    name = item.name.removeprefix("test_")
    if (cell := params.get("cell")) is not None:
        # A cell of the step tier: all launchers at once. Its case is the trace, of which upstream's run serves all.
        described = {"case": cell.trace, "sites": [], "launcher": f"step.{cell.scenario}"}
        return {"test": item.nodeid, **described, "backend": cell.backend, "setting": cell.setting}
    return {
        "test": item.nodeid,
        "case": case.name if case is not None else name.partition("[")[0] if site is not None else name,
        "sites": list(site.ids) if site is not None else [],
        "launcher": site.launcher if site is not None else "",
        "backend": params.get("backend"),
        "setting": params.get("setting"),
    }


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    # pytest's own selection may refuse its -k; the list is then written nowhere, or every test would count as chosen.
    outcome = yield
    if outcome.excinfo is None:
        _choose(config, items)


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    def wanted(item: pytest.Item) -> bool:
        if hasattr(item, "callspec") and "cell" in item.callspec.params:
            return True
        import test_bound

        backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
        if backend is not None and backend not in test_bound.BACKENDS:
            return False
        # The same comparison, past the dispatcher.
        direct = getattr(item, "originalname", "") == "test_parity"
        return not (direct and item.callspec.params["site"].launcher in test_bound.DECLARED)

    found = [item for item in items if wanted(item)]
    _write({"collected": [_describe(item) for item in found]})
    picked = set(_picked())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in picked])
    items[:] = [item for item in found if item.nodeid in picked]


def _picked() -> list[str]:
    while not PICK.exists():
        if os.getppid() != PARENT:
            pytest.exit("nobody says what to run", returncode=3)
        time.sleep(0.05)
    picked: list[str] = json.loads(PICK.read_text(encoding="utf-8"))
    return picked


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    line = item.stash.get(_LINE, None)
    # What went wrong last is told; a test whose setup failed has no call.
    if line is None or report.failed or report.when == "call":
        line = item.stash[_LINE] = _line(item, call, report)
    if report.when == "teardown":
        _write({**line, "finished": round(time.time(), 3)})
        if os.getppid() != PARENT:
            pytest.exit("nobody reads the results any more", returncode=3)


def _line(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> dict[str, Any]:
    found: dict[str, Any] = dict(item.user_properties)
    line = {
        "test": item.nodeid,
        "outcome": report.outcome,
        "ran": found.get("ran"),
        "error": found.get("max_error"),
        "upstream": found.get("upstream_seconds"),
        "seconds": round(call.duration, 5),
        "message": None,
        "tensor": None,
        "index": None,
    }
    if report.skipped:
        line["message"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)[:MESSAGE]
    elif report.failed and call.excinfo is not None:
        # What the fork does differently is a failure; anything else that goes wrong is an error.
        failed = report.when == "call" and isinstance(call.excinfo.value, (AssertionError, pytest.fail.Exception))
        line["outcome"] = "failed" if failed else "error"
        line["message"] = call.excinfo.exconly()[:MESSAGE]
        line["tensor"], line["index"] = getattr(call.excinfo.value, "where", None) or (None, None)
    return line
