from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from test_patchfile import MODIFY

from kunlunfork.errors import ForkError
from kunlunfork.series import load_series, scan, series_hash

ONE = b"Subject: one\n\n" + MODIFY
TWO = b"Subject: two\n\n" + MODIFY


def folder(tmp_path: Path, series: bytes, **files: bytes) -> Path:
    (tmp_path / "series").write_bytes(series)
    for name, data in files.items():
        (tmp_path / f"{name}.patch").write_bytes(data)
    return tmp_path


def test_order_comments_and_blank_lines(tmp_path: Path) -> None:
    series = b"# the order matters\n\ntwo.patch\n  # why\n one.patch \r\n"
    patches = load_series(folder(tmp_path, series, one=ONE, two=TWO, other=b"not named"))
    assert [(p.name, p.header.subject) for p in patches] == [("two.patch", "two"), ("one.patch", "one")]


def test_names_beyond_ascii(tmp_path: Path) -> None:
    patches = load_series(folder(tmp_path, "é 1.patch\n".encode(), **{"é 1": ONE}))
    assert patches[0].name == "é 1.patch"


@pytest.mark.parametrize("series", [b"", b"\n", b"# nothing yet\n"])
def test_an_empty_series(tmp_path: Path, series: bytes) -> None:
    assert load_series(folder(tmp_path, series)) == ()


@pytest.mark.parametrize(
    "series, line, message",
    [
        (b"one.patch\n\none.patch\n", 3, "second time"),
        (b"../one.patch\n", 1, "not the name of a file"),
        (b"..\n", 1, "not the name of a file"),
        (b"/etc/passwd\n", 1, "not the name of a file"),
        (b"sub/one.patch\n", 1, "not the name of a file"),
        (b"sub\\one.patch\n", 1, "not the name of a file"),
        (b"one\0.patch\n", 1, "not the name of a file"),
        (b"one.patch\n# x\ngone.patch\n", 3, "not there"),
        (b"one.patch -p0\n", 1, "-p0"),
        (b"one\n", 1, "does not end with .patch"),
        (b"one.patch\ncaf\xe9.patch\n", 2, "not UTF-8"),
        (b"folder.patch\n", 1, "not a regular file"),
        (b"link.patch\n", 1, "not a regular file"),
        (b"pipe.patch\n", 1, "not a regular file"),
        (b"x" * 300 + b".patch\n", 1, "cannot be read"),
    ],
)
def test_refused(tmp_path: Path, series: bytes, line: int, message: str) -> None:
    where = folder(tmp_path, series, one=ONE)
    (where / "folder.patch").mkdir()
    (where / "link.patch").symlink_to(where / "one.patch")
    os.mkfifo(where / "pipe.patch")
    with pytest.raises(ForkError, match=message) as caught:
        load_series(where)
    assert caught.value.message.startswith(f"{where / 'series'}, line {line}: ")
    assert caught.value.fix


def test_no_series(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="missing"):
        load_series(tmp_path)
    with pytest.raises(ForkError, match="missing"):
        load_series(tmp_path / "gone")
    (tmp_path / "series").mkdir()
    with pytest.raises(ForkError, match="not a regular file"):
        load_series(tmp_path)


def test_a_patch_that_cannot_be_understood(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match=r"two\.patch, line "):
        load_series(folder(tmp_path, b"one.patch\ntwo.patch\n", one=ONE, two=b"junk"))


def test_scan_goes_on_after_a_problem(tmp_path: Path) -> None:
    names, problems = scan(folder(tmp_path, b"gone.patch\none.patch\none.patch\n", one=ONE))
    assert [(n.name, n.line) for n in names] == [("one.patch", 2)]
    assert [p.line for p in problems] == [1, 3]


def test_the_hash(tmp_path: Path) -> None:
    one, two = load_series(folder(tmp_path, b"one.patch\ntwo.patch\n", one=ONE, two=TWO))
    text = "".join(f"{name}\0{sha256(data).hexdigest()}\n" for name, data in (("one.patch", ONE), ("two.patch", TWO)))
    assert series_hash((one, two)) == sha256(text.encode()).hexdigest()
    assert series_hash((two, one)) != series_hash((one, two)) != series_hash((one,))
    assert series_hash(()) == sha256().hexdigest()
