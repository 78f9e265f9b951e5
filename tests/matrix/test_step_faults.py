from __future__ import annotations

import sys

from step.generate import SCENARIOS

from kunlunfork.content import Content
from kunlunfork.matrix import faults

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _listed(content: Content) -> list[dict[str, object]]:
    text = (content.parity / "step" / "faults.toml").read_text(encoding="utf-8")
    found: list[dict[str, object]] = tomllib.loads(text)["fault"]
    return found


def test_every_scenario_has_faults_and_every_fault_a_name(content: Content) -> None:
    listed = _listed(content)
    assert {s for fault in listed for s in fault["scenarios"]} == set(SCENARIOS)  # type: ignore[attr-defined]
    assert len({fault["name"] for fault in listed}) == len(listed) > 30


def _fault(listed: dict[str, object]) -> faults.Fault:
    texts = {key: str(value) for key, value in listed.items() if key != "scenarios"}
    file = texts.pop("file").removeprefix("kunlun/")
    return faults.Fault(kind="step", file=file, tests=(), **texts)


def test_those_in_the_forks_own_files_fit(content: Content) -> None:
    own = [f for f in _listed(content) if str(f["file"]).startswith("kunlun/")]
    assert len(own) > 15
    made = [_fault(f) for f in own]
    for version in content.versions():
        fit = [fault for fault in made if fault.fits(version)]
        assert len(fit) > 15
        faults.check(fit, faults.package(content, version))
