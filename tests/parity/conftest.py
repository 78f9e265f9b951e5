# SPDX-License-Identifier: Apache-2.0
"""Prepare the oracle before a site module imports upstream, and write one JSON line a test where asked.

`KUNLUN_PARITY_JSON=FILE` appends the lines, `KUNLUN_PARITY_N` sets the random cases a site,
`KUNLUN_PARITY_SEED` their seed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import interpreter

interpreter.prepare()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    outcome = yield
    report = outcome.get_result()
    target = os.environ.get("KUNLUN_PARITY_JSON")
    if not target or not (report.when == "call" or report.outcome == "skipped" or report.failed):
        return
    line = {"test": item.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 4)}
    line.update(dict(item.user_properties))
    if report.failed:
        line["error"] = str(report.longrepr).strip().splitlines()[-1][:300]
    with Path(target).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line, sort_keys=True) + "\n")
