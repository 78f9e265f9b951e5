# SPDX-License-Identifier: Apache-2.0
"""pytest, for `kunlunfork matrix run --tier upstream`: upstream's own tests, a JSON line for each that starts and ends.

`KUNLUN_UPSTREAM_OUT` names the file. Nothing of a test is changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OUT = Path(os.environ["KUNLUN_UPSTREAM_OUT"])
MESSAGE = 500
_LINE = pytest.StashKey[dict[str, Any]]()


def _write(line: dict[str, Any]) -> None:
    with OUT.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _write({"test": report.nodeid, "outcome": _outcome(report), "seconds": 0.0, "message": _last(report)})


def pytest_runtest_logstart(nodeid: str) -> None:
    _write({"started": nodeid})


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    line = item.stash.get(_LINE, None)
    # What went wrong last is told; a test whose setup failed or was skipped has no call.
    if line is None or report.failed or report.when == "call":
        message = call.excinfo.exconly()[:MESSAGE] if call.excinfo is not None else ""
        line = item.stash[_LINE] = {
            "test": item.nodeid,
            "outcome": _outcome(report),
            "seconds": round(call.duration, 3),
            "message": message,
        }
    if report.when == "teardown":
        _write(line)


def _outcome(report: pytest.CollectReport | pytest.TestReport) -> str:
    # An expected failure that came is reported as skipped, one that did not come as passed.
    return "skipped" if report.skipped else "passed" if report.passed else "failed"


def _last(report: pytest.CollectReport) -> str:
    longrepr = report.longrepr
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return (text.strip().splitlines() or [""])[-1][:MESSAGE]
