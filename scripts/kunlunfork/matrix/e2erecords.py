"""What upstream's engines said to the cases of the tier `e2e`, kept beside the engine environment that they ran in."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunlunfork.matrix.e2ecompare import Answer
from kunlunfork.matrix.e2eengines import V1
from kunlunfork.matrix.e2escenarios import Case, Scenario

# What decides about an answer beside the question.
_SOURCES = ("e2e/chain.py", "e2e/engine.py", "e2e/models.py", "e2e/serve.py", "interpreter.py")


def models(root: Path, parity: Path) -> Path:
    """The folder of the models that these sources make."""
    return root / f"models-{_digest([(parity / 'e2e' / n).read_text() for n in ('chain.py', 'models.py')])}"


class Records:
    """Answers in files of `root`, one a case and oracle; another question has another file."""

    def __init__(self, root: Path, parity: Path) -> None:
        self._root = root
        self._sources = [(parity / name).read_text(encoding="utf-8") for name in _SOURCES]

    def get(self, kind: str, scenario: Scenario, case: Case) -> Answer | None:
        try:
            raw = json.loads(self._path(kind, scenario, case).read_text(encoding="utf-8"))
            return Answer(raw["about"], raw["said"], raw["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # made again

    def put(self, kind: str, scenario: Scenario, case: Case, answer: Answer) -> None:
        path = self._path(kind, scenario, case)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.new")
        body = {"about": answer.about, "said": answer.said, "seconds": answer.seconds}
        written.write_text(json.dumps(body), encoding="utf-8")
        written.replace(path)

    def _path(self, kind: str, scenario: Scenario, case: Case) -> Path:
        question = [self._sources, kind, engine_of(kind, scenario), case.calls]
        name = re.sub(r"[^a-z0-9]+", "-", f"{scenario.name} {case.name}".lower())
        return self._root / f"{kind}-{name}-{_digest(question)}.json"


def engine_of(kind: str, scenario: Scenario) -> Mapping[str, Any]:
    """The engine of a scenario: runner V1 has no drafts, and is asked without them."""
    llm = {name: value for name, value in scenario.llm.items() if kind != V1 or name != "draft"}
    return {"llm": llm, "env": dict(scenario.env)}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]
