"""Upstream's launchers read from source."""

from __future__ import annotations

import importlib

import pytest

SOURCE = """
import absent_dependency
from typing import Any

def plain(x: "torch.Tensor", y: int = 1, *, z: str | None = None) -> None: ...

def everything(a, /, b, c=(1, -2), *rest, d, e={"k": 1.5}, f=CONSTANT, g=float("-inf"), **more): ...

def twice(x): ...
def twice(x, y): ...

class Holder:
    def method(self, x=None): ...
    attribute = 1

    class Inner:
        def deep(self): ...

value = 3

async def coroutine(x): ...
"""


@pytest.fixture
def found(kunlun, tmp_path):
    """What is found at a name of a module, against a signature that nothing has."""
    package = tmp_path / "fakeup"
    package.mkdir()
    (package / "m.py").write_text(SOURCE, encoding="utf-8")
    (package / "sub").mkdir()
    (package / "sub" / "__init__.py").write_text("def launch(x): ...", encoding="utf-8")

    def found(qualname, module="fakeup.m", signature="(nothing has this)"):
        site = kunlun.sites.Site((0,), module, qualname, signature, None, "impl")
        lines = kunlun.upstream_source.problems([site], package)
        prefix = f"{module}:{qualname}: expected a function {signature}, found "
        assert all(line.startswith(prefix) for line in lines)
        return [line[len(prefix) :] for line in lines]

    return found


@pytest.mark.parametrize(
    ("qualname", "there"),
    [
        ("plain", "(x, y=1, *, z=None)"),
        ("everything", "(a, /, b, c=(1, -2), *rest, d, e={'k': 1.5}, f=CONSTANT, g=-inf, **more)"),
        ("twice", "(x, y)"),
        ("Holder.method", "(self, x=None)"),
        ("Holder.Inner.deep", "(self)"),
        ("Holder", "a ClassDef"),
        ("coroutine", "a AsyncFunctionDef"),
        ("value", "nothing"),
        ("Holder.attribute", "nothing"),
        ("Holder.absent", "nothing"),
        ("Absent.method", "nothing"),
    ],
)
def test_what_is_there(found, qualname, there):
    assert found(qualname) == [there]
    if there.startswith("("):
        assert found(qualname, signature=there) == []


def test_modules_and_packages(found):
    assert found("launch", "fakeup.sub", "(x)") == []
    assert found("launch", "fakeup.gone") == ["no such module"]
    assert found("launch", "fakeup.sub.gone") == ["no such module"]


def test_source_and_import_agree_on_every_signature(kunlun, world, tmp_path):
    importable = SOURCE.replace("import absent_dependency", "CONSTANT = 7").replace("f=CONSTANT, ", "")
    world.write("fakeboth", importable)
    module = importlib.import_module("fakeboth")
    sites = [
        kunlun.sites.Site((0,), "fakeup.fakeboth", name, kunlun.dispatch.signature(fn), None, "impl")
        for name, fn in (
            ("plain", module.plain),
            ("everything", module.everything),
            ("twice", module.twice),
            ("Holder.method", module.Holder.method),
        )
    ]
    assert kunlun.upstream_source.problems(sites, world.root) == ()
