"""git writes trees out; neither what they say of themselves nor what the user has set changes a byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from kunlunfork import checkout, git, paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK
from kunlunfork.store import Base, Store

ODD = {
    b".gitattributes": b"* text=auto eol=crlf ident filter=lfs working-tree-encoding=UTF-16 export-ignore\n",
    b"d/.gitattributes": b"* eol=crlf\n",
    b"d/lf.txt": b"$Id$\na\n",
    b"d/crlf.txt": b"a\r\nb\n",
    b"back\\slash": b"x",
    b"git~1": b"x",
    b"new\nline \xff": b"x",
    b"empty": b"",
    b"d/e/large": bytes(range(256)) * 8192,
}


@pytest.fixture
def odd(tmp_path: Path) -> tuple[Store, Base]:
    store = Store(tmp_path / "store.git")
    many = {b"many/%d/%d.py" % (i % 7, i): b"%d\n" % i for i in range(400)}  # enough for several workers
    members = [(path, REGULAR, data) for path, data in {**ODD, **many}.items()]
    members += [(b"run.sh", EXECUTABLE, b"#!/bin/sh\n"), (b"link", SYMLINK, b"d/lf.txt")]
    return store, store.import_members("sdist", "1.0", "0" * 64, members)


def write(store: Store, tree: str, folder: Path) -> None:
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    try:
        with checkout.writing(store, tree, folder, fd):
            pass
    finally:
        os.close(fd)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_bytes_names_and_modes(
    odd: tuple[Store, Base], mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, base = odd
    config = tmp_path / "config"
    config.write_text("[core]\n\tautocrlf = true\n\tsymlinks = false\n\tfileMode = false\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nobody's"))
    folder = tmp_path / "a tree"
    before = os.umask(mask)
    try:
        write(store, base.tree, folder)
    finally:
        os.umask(before)
    entries = store.entries(base.tree)
    names = [os.fsencode(f.relative_to(folder)) for f in folder.rglob("*") if f.is_symlink() or not f.is_dir()]
    assert {name: have[0] for name in names if (have := paths.read_entry(folder, name))} == entries
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o777 & ~mask
    assert stat.S_IMODE((folder / "empty").stat().st_mode) == 0o666 & ~mask
    assert not (tmp_path / "nobody's").exists()


def test_a_blob_that_is_not_there_is_told(odd: tuple[Store, Base], tmp_path: Path) -> None:
    store, base = odd
    for pack in (store.path / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o644)
        data = pack.read_bytes()
        half = len(data) // 2
        pack.write_bytes(data[:half] + bytes(len(data) - half))
    with pytest.raises(ForkError, match="is damaged") as error:
        write(store, base.tree, tmp_path / "tree")
    assert error.value.fix is not None and "cache prune --all" in error.value.fix


def test_a_file_that_cannot_be_written_is_no_damage_of_the_store(
    odd: tuple[Store, Base], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, base = odd
    real = git.command

    def command(args: Sequence[str | bytes | Path], git_dir: Path | None = None) -> list[str | bytes | Path]:
        if "read-tree" in args:
            return ["sh", "-c", "echo \"error: unable to write file 'a'\" >&2; exit 1"]
        return real(args, git_dir)

    monkeypatch.setattr(git, "command", command)
    with pytest.raises(OSError, match="unable to write file 'a'"):
        write(store, base.tree, tmp_path / "tree")
