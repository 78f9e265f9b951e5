"""The scenarios that are shipped: named apart, whole, and readable without vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import REPO

from kunlunfork.matrix import e2escenarios, settings
from kunlunfork.matrix.e2escenarios import Scenario

PARITY = REPO / "tests" / "parity"
ON, OFF = settings.settings("all-on", {"KUNLUN_A": None})[0], settings.settings("all-off", {"KUNLUN_A": None})[0]


@pytest.fixture(scope="module")
def scenarios() -> tuple[Scenario, ...]:
    code = "import sys; from e2e import scenarios; scenarios.main('cpu'); assert 'torch' not in sys.modules"
    env = {**os.environ, "PYTHONPATH": str(PARITY)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    return tuple(e2escenarios.parse(raw) for raw in json.loads(out))


def test_every_cell_has_a_name_of_its_own(scenarios: tuple[Scenario, ...]) -> None:
    names = [planned.test for planned in e2escenarios.cells(scenarios, (ON, OFF))]
    assert len(set(names)) == len(names) > 10


def test_every_case_is_compared_with_something(scenarios: tuple[Scenario, ...]) -> None:
    for scenario in scenarios:
        for case in scenario.cases:
            assert set(case.oracles) <= {"v1", "v2"}
            assert case.oracles or case.known, f"{scenario.name}: {case.name}"
            assert case.calls
            assert len(case.known) <= len(case.calls)
            assert case.unlike is None or scenario.case(case.unlike) is not case


def test_another_setting_makes_no_cells(scenarios: tuple[Scenario, ...]) -> None:
    each = settings.settings("each", {"KUNLUN_A": None, "KUNLUN_B": None})
    assert {p.setting.name for p in e2escenarios.cells(scenarios, each)} == {"all-on", "all-off"}


def test_a_device_without_scenarios() -> None:
    env = {**os.environ, "PYTHONPATH": str(PARITY)}
    command = [sys.executable, "-m", "e2e.scenarios", "xpu"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no scenarios for xpu" in done.stderr
