# SPDX-License-Identifier: Apache-2.0
"""What this run of the tier consists of, as `kunlunfork matrix` says it in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from step.generate import SCENARIOS

SETTINGS: dict[str, dict[str, str]] = json.loads(os.environ.get("KUNLUN_MATRIX_SETTINGS") or '{"all-on": {}}')
BACKENDS = (os.environ.get("KUNLUN_MATRIX_BACKENDS") or "torch").split(",")
SEED = int(os.environ.get("KUNLUN_PARITY_SEED", "0"))
# Of each scenario, over all its traces.
STEPS = int(os.environ.get("KUNLUN_STEP_STEPS", "60"))
# Of a trace: long enough for every row to be used again and again, short enough to keep all snapshots.
LONGEST = 120
# Where traces that fail go, and how long one may be made smaller (seconds).
TRACES = Path(os.environ.get("KUNLUN_STEP_TRACES", "."))
SHRINK = float(os.environ.get("KUNLUN_STEP_SHRINK", "150"))


@dataclass(frozen=True)
class Cell:
    """One trace under one setting. backend: 'torch', 'fused', or 'reference' for every site row by row."""

    scenario: str
    seed: int
    steps: int
    backend: str
    setting: str

    @property
    def trace(self) -> str:
        return f"seed {self.seed}, {self.steps} steps"

    @property
    def id(self) -> str:
        return f"{self.scenario}-seed{self.seed}-{self.steps}steps-{self.backend}-{self.setting}"


def cells() -> Iterator[Cell]:
    """By trace, since upstream's run of it serves all settings."""
    for number, scenario in enumerate(SCENARIOS):
        left, seed = STEPS, SEED
        while left > 0:
            steps = min(left, LONGEST)
            for backend in BACKENDS:
                for setting in _settings(backend, number):
                    yield Cell(scenario, seed, steps, backend, setting)
            left -= steps
            seed += 1


def _settings(backend: str, number: int) -> list[str]:
    """The settings of a scenario, the number of which is given."""
    names = list(SETTINGS)
    if backend == "torch":
        return names
    if backend == "fused":
        # Slow in the interpreter: the first one, and another in each scenario.
        return list(dict.fromkeys((names[0], names[number % len(names)])))
    # The reference has one form of everything.
    return ["all-on"]


def variables(backend: str, setting: str) -> dict[str, str]:
    """KUNLUN_* of the fork's runner; `rig` makes the reference of the backend that an engine has no name for."""
    return {"KUNLUN_KERNELS": backend, **SETTINGS.get(setting, {})}
