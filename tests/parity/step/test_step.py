# SPDX-License-Identifier: Apache-2.0
"""Traces of engine steps: after each the fork's runner has the state, the inputs and the output of upstream's."""

from __future__ import annotations

import time
from typing import Any

import harness
import pytest

from step import cells, drive, findings
from step.cells import Cell
from step.generate import generate


class _Oracle:
    """Upstream's run of the trace that was asked for last: many cells in a row want the same."""

    def __init__(self) -> None:
        self.key: tuple[str, int, int] | None = None
        self.seen: list[drive.Seen] = []
        self.seconds = 0.0

    def run(self, cell: Cell) -> list[drive.Seen]:
        key = (cell.scenario, cell.seed, cell.steps)
        if self.key != key:
            self.key, self.seen = None, []
            began = time.perf_counter()
            self.seen = list(drive.oracle(generate(*key)))
            self.key, self.seconds = key, time.perf_counter() - began
        return self.seen


_oracle = _Oracle()


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id) for cell in cells.cells()])
def test_step(cell: Cell, record_property: Any) -> None:
    seen = _oracle.run(cell)
    variables = cells.variables(cell.backend, cell.setting)
    record_property("ran", cell.backend)
    record_property("upstream_seconds", round(_oracle.seconds, 3))
    trace = generate(cell.scenario, cell.seed, cell.steps)
    found = drive.follow(trace, seen, variables)
    if found is not None:
        small, tries = findings.shrink(trace, found, variables, cells.SHRINK)
        path = findings.keep(small, found, variables, cells.TRACES)
        raise harness.Mismatch(
            f"{found}\n"
            f"{len(small.arrivals)} requests, {len(small.events)} events and {small.steps} steps are left of "
            f"{len(trace.arrivals)}, {len(trace.events)} and {trace.steps} after {tries} tries\n"
            f"see it again: kunlunfork matrix replay {path}",
            found.first,
        )
