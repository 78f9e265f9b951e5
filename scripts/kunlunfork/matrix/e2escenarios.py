"""The scenarios of the tier `e2e`, as `tests/parity/e2e/scenarios.py` says them, and the cells that they make."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.settings import Setting
from kunlunfork.matrix.workers import environ

# Slow engines: the two ends, of all settings that a run may ask for.
SETTINGS = ("all-on", "all-off")
BACKEND = "torch"


@dataclass(frozen=True)
class Case:
    """What one cell asks of an engine. `calls`: in a row. `oracles`: of `v1`, `v2`, whose answers it must equal.
    `ranges`: counter -> least and most (None: any) that show that what the case is about happened. `unlike`: a case
    whose tokens the oracle's differ from. `known`: per call the tokens and counters that follow from the model."""

    name: str
    calls: tuple[Mapping[str, Any], ...]
    oracles: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int | None]]
    unlike: str | None
    known: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Scenario:
    """One engine. `llm`: its arguments; `hide_views`: of host memory, from the fork's; `cannot`: why it does not run on
    the device."""

    name: str
    llm: Mapping[str, Any]
    env: Mapping[str, str]
    ranks: int
    hide_views: bool
    cannot: str | None
    cases: tuple[Case, ...]

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)


@dataclass(frozen=True)
class Planned:
    """One cell before it has run."""

    scenario: Scenario
    case: Case
    setting: Setting

    @property
    def test(self) -> str:
        return f"e2e/{self.scenario.name}::{self.case.name}[{BACKEND}-{self.setting.name}]"

    @property
    def launcher(self) -> str:
        return f"e2e.{self.scenario.name}"

    @property
    def described(self) -> str:
        """The case with what it is compared with."""
        against = [*(o.upper() for o in self.case.oracles), *(["known"] if self.case.known else [])]
        return f"{self.case.name} = {', '.join(against)}"


def load(content: Content, engine: Engine, device: str) -> tuple[Scenario, ...]:
    """The scenarios of a device.

    Raises:
        ForkError: the module that says them fails.
    """
    child = subprocess.run(
        [str(engine.python), "-m", "e2e.scenarios", device],
        env=environ(engine, (content.parity,), {}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if child.returncode:
        raise ForkError(
            "the scenarios of the tier e2e cannot be read", details=child.stderr.strip().splitlines()[-8:],
            found=f"exit code {child.returncode}", expected=f"{content.parity / 'e2e' / 'scenarios.py'}",
        )  # fmt: skip
    return tuple(parse(raw) for raw in json.loads(child.stdout))


def parse(raw: Mapping[str, Any]) -> Scenario:
    cases = tuple(
        Case(
            name=case["name"],
            calls=tuple(case["calls"]),
            oracles=tuple(case["oracles"]),
            ranges={name: (least, most) for name, (least, most) in case["ranges"].items()},
            unlike=case["unlike"],
            known=tuple(case["known"]),
        )
        for case in raw["cases"]
    )
    return Scenario(raw["name"], raw["llm"], raw["env"], raw["ranks"], raw["hide_views"], raw["cannot"], cases)


def cells(scenarios: Sequence[Scenario], settings: Sequence[Setting]) -> Iterator[Planned]:
    """By scenario and setting: the cases of both share an engine."""
    for scenario in scenarios:
        for setting in settings:
            if setting.name in SETTINGS:
                for case in scenario.cases:
                    yield Planned(scenario, case, setting)
