from __future__ import annotations

from pathlib import Path

import pytest

from kunlunfork.errors import ForkError
from kunlunfork.pycache import stale_bytecode

OURS = [
    "foo.cpython-310.pyc",
    "foo.cpython-312.opt-1.pyc",
    "foo.cpython-312.opt-2.pyc",
    "foo.cpython-313t.pyc",
    "foo.cpython-311-pytest-8.3.2.pyc",
    "foo.pypy310.pyc",
]
OTHERS = [
    "foo.bar.cpython-310.pyc",
    "foo.bar.cpython-310.opt-1.pyc",
    "foo.bar.cpython-311-pytest-8.3.2.pyc",
    "foobar.cpython-310.pyc",
    "bar.foo.cpython-310.pyc",
    "foo.pyc",
    "foo.cpython-310.pyo",
    "foo.cpython-310.pyc.140223",
    "foo.cpython-310.nbc",
    "foo.py",
]


def test_every_tag_of_exactly_this_stem(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    for name in OURS + OTHERS:
        (cache / name).touch()
    (cache / "foo.cpython-309.pyc").mkdir()
    assert {path.name for path in stale_bytecode(tmp_path / "foo.py")} == set(OURS)
    dotted = {path.name for path in stale_bytecode(tmp_path / "foo.bar.py")}
    assert dotted == {name for name in OTHERS if name.startswith("foo.bar.")}


def test_what_has_no_bytecode(tmp_path: Path) -> None:
    assert stale_bytecode(tmp_path / "foo.py") == []
    assert stale_bytecode(tmp_path / "gone" / "foo.py") == []
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "foo.cpython-310.pyc").touch()
    assert stale_bytecode(tmp_path / "foo.json") == []
    assert stale_bytecode(tmp_path / "foo") == []
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "__pycache__").touch()
    assert stale_bytecode(tmp_path / "sub" / "foo.py") == []


def test_the_name_that_python_itself_uses(tmp_path: Path) -> None:
    import py_compile

    source = tmp_path / "foo.py"
    source.write_text("x = 1\n")
    made = {py_compile.compile(str(source), optimize=level) for level in (0, 1, 2)}
    assert {str(path) for path in stale_bytecode(source)} == made


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").symlink_to("__pycache__")
    with pytest.raises(ForkError, match="cannot be read"):
        stale_bytecode(tmp_path / "foo.py")
