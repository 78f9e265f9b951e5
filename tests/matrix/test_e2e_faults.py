"""Faults that whole engines must show: put into copies of the tree, each caught by every cell that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import e2ekit
import matrixkit
import pytest
from e2ekit import case

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import e2efaults
from kunlunfork.matrix.selftest import Result
from kunlunfork.progress import Silent

PART = "def change(said):\n    return said\n"
FAULT = {"name": "one more", "file": "part.py", "old": "return said", "new": "return [*said, 9]", "cells": ["one::a"]}
# Seen by one of the two cases that it names.
HALF = {**FAULT, "name": "half", "new": "return said[:1]", "cells": ["one::a", "one::b"]}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    (tmp_path / "content").mkdir()
    scenario = {
        "name": "one",
        "cases": [case("a"), case("b", {"v1": [5, 6], "fork": [5, 6]}), case("c", {"fork": [7]})],
    }
    made = e2ekit.make(tmp_path / "content", [scenario])
    matrixkit.replace_engine(monkeypatch, made)
    tree = made.root / "engine" / "tree" / "vllm"
    (tree / "__pycache__").mkdir(parents=True)
    (tree / "part.py").write_text(PART)
    (tree / "__pycache__" / "part.cpython-311.pyc").write_bytes(b"old")
    return made


def run(content: Content, *faults: dict[str, Any], expression: str | None = None) -> Result:
    text = ""
    for fault in faults:
        text += "[[fault]]\n" + "".join(f"{name} = {value!r}\n" for name, value in fault.items())
    (content.parity / "e2e" / "faults.toml").write_text(text)
    cache = Cache(content.root / "cache")
    return e2efaults.run(content, cache, "0.25.1", "cpu", 1, expression, None, Silent())


def test_faults_that_are_caught_and_that_survive(content: Content) -> None:
    dies = {**FAULT, "name": "dies", "new": "return 'die'"}
    result = run(content, FAULT, HALF, dies)
    assert [(v.fault.name, v.outcome, v.tests) for v in result.verdicts] == [
        ("one more", "caught", 1), ("half", "survived", 2), ("dies", "caught", 1),
    ]  # fmt: skip
    assert result.verdicts[0].by == "e2e/one::a[torch-all-on]"
    assert result.verdicts[1].message == "passed: e2e/one::a[torch-all-on]"
    assert "killed by signal 9" in (result.verdicts[2].message or "")
    tree = content.root / "engine" / "tree" / "vllm"
    assert (tree / "part.py").read_text() == PART
    assert (tree / "__pycache__" / "part.cpython-311.pyc").read_bytes() == b"old"
    assert [v.fault.name for v in run(content, FAULT, HALF, expression="half").verdicts] == ["half"]
    with pytest.raises(ForkError, match="no fault of the tier e2e matches 'none'"):
        run(content, FAULT, expression="none")


def test_a_tier_that_fails_without_a_fault_shows_nothing(content: Content) -> None:
    with pytest.raises(ForkError, match="fails without any fault"):
        run(content, {**FAULT, "cells": ["one::c"]})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"old": "nowhere"}, "one more: part.py has its old text 0 times"),
        ({"new": "return ("}, "one more: its new text is no Python ('(' was never closed, line 2)"),
        ({"file": "missing.py"}, "one more: missing.py has its old text 0 times"),
        ({"cells": ["one::z"]}, "one more: there is no cell one::z"),
        ({"why": "because"}, "one more: has the fields cells, file, name, new, old, why"),
    ],
)
def test_a_list_that_does_not_fit(content: Content, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ForkError, match="no longer fits") as caught:
        run(content, {**FAULT, **change})
    assert list(caught.value.details) == [told]
