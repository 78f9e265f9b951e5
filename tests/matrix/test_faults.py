from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import faults
from kunlunfork.matrix.faults import KINDS, Fault

TEXT = """
[[fault]]
name = "a"
kind = "dtype"
file = "x.py"
old = "one"
new = "two"
tests = ["x"]
"""


@pytest.fixture
def other(tmp_path: Path) -> Content:
    folder = tmp_path / "tests" / "parity" / "faults"
    folder.mkdir(parents=True)
    (folder / "x.toml").write_text(TEXT)
    return Content(tmp_path, clone=True)


def test_the_list_is_true(content: Content) -> None:
    """Every old text is in its file exactly once, and every new one is Python."""
    for version in content.versions():
        found = [fault for fault in faults.load(content) if fault.fits(version)]
        assert len(found) >= 60
        faults.check(found, faults.package(content, version))


def test_the_list_has_what_was_promised(content: Content) -> None:
    found = faults.load(content)
    assert len(found) >= 60
    kinds = Counter(f.kind for f in found)
    assert set(kinds) == set(KINDS)
    syncs = " ".join(f.new for f in found if f.kind == "sync")
    for way in (".item()", ".tolist()", ".cpu()", ".numpy()", "nonzero", "unique", "equal", "bool(", "int("):
        assert way in syncs, way
    modules = {f.file for f in found}
    launchers = {p for p in faults.package(content, "0.25.1") if p.startswith("launchers/") and "__init__" not in p}
    assert launchers - modules == set()
    # The public fork's bugs. B15, a placeholder without next_power_of_2, is in test_kunlun_runner.
    assert {f"B{n}" for n in range(1, 15)} <= {f.bug for f in found}


def test_every_name_of_a_test_is_one(content: Content) -> None:
    """A misspelt launcher would select nothing."""
    sites = {p.stem for p in (content.parity / "sites").glob("*.py")}
    files = {p.name for p in content.parity.glob("test_*.py")}
    packages = {version: faults.package(content, version) for version in content.versions()}
    for fault in faults.load(content):
        # Of a release that has it: later ones have launchers that earlier ones lack.
        package = packages[next(version for version in packages if fault.fits(version))]
        for test in fault.tests:
            if test.endswith(".py"):
                assert test in files, fault.name
                continue
            module, _, function = test.removeprefix("bound/").partition(":")
            assert module in sites, fault.name
            text = package[f"launchers/{module}.py"].read_text(encoding="utf-8")
            assert not function or f"def {function}(" in text, fault.name


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('kind = "dtype"', 'kind = "type"', "kind 'type'"),
        ('new = "two"', 'new = "two"\nsince = "last"', "since is not a version"),
        ('tests = ["x"]', "tests = []", "tests is not a list of names"),
        ('new = "two"', 'new = "one"', "old and new are the same"),
        ('new = "two"', "", "no new"),
        ('new = "two"', 'new = "two"\nsite = 1', "unknown field site"),
        ('new = "two"', "new = 2", "a field is not text"),
        ("[[fault]]", TEXT + "[[fault]]", "two faults have this name"),
    ],
)
def test_a_list_that_is_not_valid(other: Content, old: str, new: str, problem: str) -> None:
    file = other.parity / "faults" / "x.toml"
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(ForkError, match="the list of faults is not valid") as e:
        faults.load(other)
    assert problem in e.value.details[0]


def test_no_list(other: Content) -> None:
    (other.parity / "faults" / "x.toml").unlink()
    with pytest.raises(ForkError, match="has no faults"):
        faults.load(other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("x = 1\n", "0 times: one"), ("one = one\n", "2 times: one"), ("def f():\n  one = 1\n", None)],
)
def test_a_fault_whose_text_is_gone_is_an_error(tmp_path: Path, text: str, problem: str | None) -> None:
    (tmp_path / "x.py").write_text(text)
    fault = Fault("a", "dtype", "x.py", "one", "two", ("x",))
    if problem is None:
        faults.check([fault], {"x.py": tmp_path / "x.py"})
        return
    with pytest.raises(ForkError, match="no longer fits") as e:
        faults.check([fault], {"x.py": tmp_path / "x.py"})
    assert problem in e.value.details[0]


def test_a_fault_that_is_no_python_or_has_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("one = 1\n")
    broken = Fault("a", "dtype", "x.py", "one = 1", "one = (", ("x",))
    nowhere = Fault("b", "dtype", "y.py", "one", "two", ("x",))
    with pytest.raises(ForkError) as e:
        faults.check([broken, nowhere], {"x.py": tmp_path / "x.py"})
    assert "no Python" in e.value.details[0]
    assert e.value.details[1] == "b: there is no y.py"


def test_a_fault_of_some_pins() -> None:
    def fits(since: str | None, before: str | None) -> list[bool]:
        fault = Fault("a", "dtype", "x.py", "one", "two", ("x",), since=since, before=before)
        return [fault.fits(version) for version in ("0.9.0", "0.26.0", "0.100.0")]

    assert fits(None, None) == [True, True, True]
    assert fits("0.26.0", None) == [False, True, True]
    assert fits(None, "0.26.0") == [True, False, False]
    assert fits("0.10.0", "0.100.0") == [False, True, False]


def test_a_copy_has_one_fault_and_the_original_none(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("one = 1\n")
    (tmp_path / "y.py").write_text("one = 1\n")
    files = {"x.py": tmp_path / "x.py", "sub/y.py": tmp_path / "y.py"}
    fault = Fault("a", "dtype", "sub/y.py", "one", "two", ("x",))
    root = faults.copy(files, tmp_path / "copy", fault)
    assert (root / "kunlun" / "x.py").read_text() == "one = 1\n"
    assert (root / "kunlun" / "sub" / "y.py").read_text() == "two = 1\n"
    assert (tmp_path / "y.py").read_text() == "one = 1\n"
