from __future__ import annotations

from pathlib import Path

import pytest

from kunlunfork import areas
from kunlunfork.areas import Area
from kunlunfork.content import Content
from kunlunfork.errors import ForkError


@pytest.mark.parametrize(
    ("glob", "path", "inside"),
    [
        ("a/**", b"a/b.py", True),
        ("a/**", b"a/b/c.py", True),
        ("a/**", b"a", False),
        ("a/**", b"ab/c.py", False),
        ("a/*.py", b"a/b.py", True),
        ("a/*.py", b"a/b/c.py", False),
        ("a/b*.py", b"a/bc.py", True),
        ("a/b*.py", b"a/cb.py", False),
        ("**/b.py", b"b.py", True),
        ("**/b.py", b"x/y/b.py", True),
        ("**/b.py", b"x/ab.py", False),
        ("a/**/b.py", b"a/b.py", True),
        ("a/**/b.py", b"a/x/y/b.py", True),
        ("a/b.py", b"a/b_py", False),
        ("a/b.py", b"x/a/b.py", False),
        ("a/*", b"a/caf\xe9.py", True),
    ],
)
def test_a_glob(glob: str, path: bytes, inside: bool) -> None:
    assert Area("x", (glob,)).has(path) is inside


def test_the_areas_of_the_fork(content: Content) -> None:
    found = areas.load(content.patches)
    assert {"spec_decode", "input_prep", "sampling", "attention_metadata", "runner", "all"} <= set(found)
    assert found["sampling"].has(b"vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py")
    assert found["spec_decode"].has(b"vllm/v1/worker/gpu/spec_decode/dspark/speculator.py")
    assert not found["spec_decode"].has(b"vllm/v1/worker/gpu/model_runner.py")
    assert found["runner"].has(b"vllm/v1/worker/gpu/model_runner.py")
    for area in found.values():
        for other in area.globs:
            assert area.has(other.replace("/**", "/x.py").replace("*", "x").encode())


def test_an_area_that_is_not_there(content: Content) -> None:
    names = [area.name for area in areas.find(content.patches, ["sampling", "runner", "sampling"])]
    assert names == ["sampling", "runner"]
    with pytest.raises(ForkError, match="no area speculation"):
        areas.find(content.patches, ["speculation"])


@pytest.mark.parametrize(
    "text",
    ["a = 'b'", "a = []", "a = [1]", "a = ['']", "a = ['/b']", "a = ['../b']", "a = ['b**']", "a = ['**']", "a = ["],
)
def test_areas_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / areas.FILE).write_text(text)
    with pytest.raises(ForkError, match=r"areas\.toml"):
        areas.load(tmp_path)
