# SPDX-License-Identifier: Apache-2.0
"""pytest as a worker of `kunlunfork matrix`: takes its share of the tests, and writes a JSON line for each.

`KUNLUN_MATRIX_OUT` names the file. `KUNLUN_MATRIX_ONLY` has the site modules of this share with commas between; `*`
among them stands for the tests that belong to no site module. The first line lists what was collected, so that a
cell whose worker died is known, too.
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
ONLY = set(os.environ["KUNLUN_MATRIX_ONLY"].split(","))
# More of a message than this helps nobody, and results are kept.
MESSAGE = 2000
PARENT = os.getppid()
_CHOSEN = pytest.StashKey[bool]()


def _write(line: dict[str, Any]) -> None:
    with OUT.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def _describe(item: pytest.Item) -> dict[str, Any]:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    site, case = params.get("site"), params.get("case")
    name = item.name.removeprefix("test_")
    return {
        "test": item.nodeid,
        "case": case.name if case is not None else name.partition("[")[0] if site is not None else name,
        "sites": list(site.ids) if site is not None else [],
        "launcher": site.launcher if site is not None else "",
        "backend": params.get("backend"),
        "setting": params.get("setting"),
    }


def _module(item: pytest.Item) -> str:
    site = item.callspec.params.get("site") if hasattr(item, "callspec") else None
    return "*" if site is None else site.launcher.partition(":")[0]


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    # pytest's own selection may refuse its -k; the list is then written nowhere, or every test would count as chosen.
    outcome = yield
    if outcome.excinfo is None:
        _choose(config, items)
        config.stash[_CHOSEN] = True


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    import test_bound

    def wanted(item: pytest.Item) -> bool:
        if _module(item) not in ONLY:
            return False
        backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
        if backend is not None and backend not in test_bound.BACKENDS:
            return False
        # The same comparison, past the dispatcher.
        direct = getattr(item, "originalname", "") == "test_parity"
        return not (direct and item.callspec.params["site"].launcher in test_bound.DECLARED)

    kept = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.stash.get(_CHOSEN, False):
        _write({"collected": [_describe(item) for item in session.items]})


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown" and not report.failed:
        return
    if report.when == "setup" and report.passed:
        return
    found: dict[str, Any] = dict(item.user_properties)
    line = {
        "test": item.nodeid,
        "outcome": report.outcome,
        "ran": found.get("ran"),
        "error": found.get("max_error"),
        "upstream": found.get("upstream_seconds"),
        "seconds": round(call.duration, 5),
        "finished": round(time.time(), 3),
        "message": None,
    }
    if report.skipped:
        line["message"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)[:MESSAGE]
    elif report.failed and call.excinfo is not None:
        # What the fork does differently is a failure; anything else that goes wrong is an error.
        failed = report.when == "call" and isinstance(call.excinfo.value, (AssertionError, pytest.fail.Exception))
        line["outcome"] = "failed" if failed else "error"
        line["message"] = call.excinfo.exconly()[:MESSAGE]
    _write(line)
    if os.getppid() != PARENT:
        pytest.exit("nobody reads the results any more", returncode=3)
