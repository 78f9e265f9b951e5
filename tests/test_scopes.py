from __future__ import annotations

from pathlib import Path

import pytest
from patchkit import Pair, patch

from kunlunfork.errors import ForkError
from kunlunfork.patchfile import parse_patch
from kunlunfork.paths import EXECUTABLE, SYMLINK
from kunlunfork.scopes import scope_of_lines, touches

SOURCE = b'''\
import os

LIMIT = 1


@decorate(
    LIMIT,
)
def outer(a=lambda: 0):
    def inner():
        return 1

    return inner


class Worker(Base):
    """Text."""

    x = 1

    @property
    async def device(self):
        class Local:
            y = 2

        return Local


if os.name:

    def guarded(): pass
'''


@pytest.mark.parametrize(
    "lines, scopes",
    [
        ([1], ("",)),
        ([5], ("",)),
        ([6], ("outer",)),
        ([7, 9], ("outer",)),
        ([10, 11], ("outer.inner",)),
        ([12], ("outer",)),
        ([14], ("",)),
        ([16, 19], ("Worker",)),
        ([21, 22], ("Worker.device",)),
        ([24, 26], ("Worker.device.Local", "Worker.device")),
        ([11, 3, 10], ("outer.inner", "")),
        ([31], ("guarded",)),
        ([29], ("",)),
        ([0, 99], ("",)),
        ([], ()),
    ],
)
def test_scopes(lines: list[int], scopes: tuple[str, ...]) -> None:
    assert scope_of_lines(SOURCE, lines) == scopes
    assert scope_of_lines(SOURCE.replace(b"\n", b"\r\n"), lines) == scopes


def test_lines_are_those_of_git() -> None:
    # Python ends a line at a lone CR, git does not; neither does at a form feed or at U+2028.
    source = b"a = 1\rb = 2\rdef f():\r    pass\n\x0cdef g():\n    '\xe2\x80\xa8'\n\nx = 1\n"
    assert scope_of_lines(source, [1]) == ("", "f")
    assert scope_of_lines(source, [2, 3]) == ("g",)
    assert scope_of_lines(source, [5]) == ("",)
    assert scope_of_lines(source, [6, 99]) == ("",)


def test_other_encodings() -> None:
    assert scope_of_lines(b"# -*- coding: latin-1 -*-\ndef caf\xe9():\n    pass\n", [3]) == ("café",)


@pytest.mark.parametrize(
    "source",
    [b"def f(:\n", b"x = '\xff'\n", b"x\0\n", b"# -*- coding: nonsense -*-\n", b"(" * 300, b"-" * 100_000 + b"1"],
)
def test_what_does_not_parse(source: bytes) -> None:
    with pytest.raises(ForkError, match="not Python"):
        scope_of_lines(source, [1])


def test_no_warning_reaches_the_user(recwarn: pytest.WarningsRecorder) -> None:
    assert scope_of_lines(b"x = '\\d'\nassert (1, 2)\n", [1]) == ("",)
    assert not recwarn


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def edited(pair: Pair, *edits: tuple[bytes, bytes], options: tuple[str, ...] = ()) -> tuple[str, ...]:
    new = SOURCE
    for old_text, new_text in edits:
        assert new.count(old_text) == 1
        new = new.replace(old_text, new_text)
    (file,) = parse_patch("x.patch", patch(pair, {b"v/w.py": SOURCE}, {b"v/w.py": new}, *options)).files
    return touches(file, SOURCE)


def test_replaced_lines(pair: Pair) -> None:
    assert edited(pair, (b"return 1", b"return 2")) == ("v/w.py::outer.inner",)
    assert edited(pair, (b"x = 1\n", b"")) == ("v/w.py::Worker",)
    assert edited(pair, (b"LIMIT = 1", b"LIMIT = 2\nM = 3"), (b"y = 2", b"y = 3")) == (
        "v/w.py::",
        "v/w.py::Worker.device.Local",
    )


@pytest.mark.parametrize("options", [(), ("-U0",), ("-U10",)])
def test_inserted_lines_count_for_their_neighbours(pair: Pair, options: tuple[str, ...]) -> None:
    assert edited(pair, (b"import os\n", b"import os\nimport re\n"), options=options) == ("v/w.py::",)
    inside = edited(pair, (b"    return inner\n", b"    x = 1\n    return inner\n"), options=options)
    assert inside == ("v/w.py::outer",)
    at_the_end = edited(pair, (b"    return inner\n", b"    return inner\n    # end\n"), options=options)
    assert at_the_end == ("v/w.py::outer", "v/w.py::")
    assert edited(pair, (b"import os\n", b"# first\nimport os\n"), options=options) == ("v/w.py::",)


def test_whole_files(pair: Pair) -> None:
    old = {
        b"gone.py": b"def f(): pass\n",
        b"moved.py": SOURCE,
        b"mode.py": b"x = 1\n",
        b"empty.py": b"",
        b"c.py": SOURCE + b"1\n",
    }
    new = {
        b"new.py": b"import re\n\n\nx = [2]\n", b"to.py": SOURCE.replace(b"return 1", b"return 2"),
        b"mode.py": (EXECUTABLE, b"x = 1\n"), b"empty.py": b"x = 1\n",
        b"c.py": SOURCE + b"2\n", b"copy.py": SOURCE + b"1\n",
    }  # fmt: skip
    parsed = parse_patch("x.patch", patch(pair, old, new, "-M", "-C"))
    sources = {b"moved.py": SOURCE, b"c.py": SOURCE + b"1\n"}
    found = {t for f in parsed.files for t in touches(f, sources.get(f.old_path or b"", b""))}
    assert found == {
        "gone.py::", "moved.py::outer.inner", "mode.py::", "empty.py::", "new.py::", "c.py::", "copy.py::",
    }  # fmt: skip


def test_a_pure_rename(pair: Pair) -> None:
    (file,) = parse_patch("x.patch", patch(pair, {b"a.py": SOURCE}, {b"b.py": SOURCE}, "-M")).files
    assert touches(file, SOURCE) == ("a.py::",)


def test_what_is_not_python(pair: Pair) -> None:
    old = {b"a.txt": b"1\n", b"l.py": (SYMLINK, b"x"), b"b.py": b"\0\1", b"bad.py": b"def f(:\n", b"caf\xe9\n": b"1"}
    new = {b"a.txt": b"2\n", b"l.py": (SYMLINK, b"y"), b"b.py": b"\0\2", b"bad.py": b"def g(:\n", b"caf\xe9\n": b"2"}
    parsed = parse_patch("x.patch", patch(pair, old, new))
    found = [t for f in parsed.files for t in touches(f, b"def f(:\n")]
    assert sorted(found) == ["a.txt", "b.py", "bad.py", "caf\\udce9\\n", "l.py"]


def test_a_stub_is_python(pair: Pair, tmp_path: Path) -> None:
    source = b"class A:\n    x: int\n"
    (file,) = parse_patch("x.patch", patch(pair, {b"a.pyi": source}, {b"a.pyi": source + b"    y: int\n"})).files
    assert touches(file, source) == ("a.pyi::A",)
