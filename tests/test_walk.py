from __future__ import annotations

import os
from pathlib import Path

import pytest
from unprivileged import unprivileged

from kunlunfork import overlay, paths, walk
from kunlunfork.errors import ForkError


def test_every_file_and_link(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"c")
    (tmp_path / "a/__pycache__").mkdir()
    (tmp_path / "a/__pycache__/d").write_bytes(b"d")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "loop").symlink_to(".")
    found = {path: (entry.mode, data) for path, entry, data in walk.files(tmp_path, skip=("__pycache__",))}
    assert found == {
        b"a/b/c": (paths.REGULAR, b"c"),
        b"link": (paths.SYMLINK, b"a"),
        b"loop": (paths.SYMLINK, b"."),
    }


def _unreadable_folder(folder: Path) -> None:
    folder.chmod(0o000)


def _folder_without_x(folder: Path) -> None:
    folder.chmod(0o444)


def _unreadable_file(folder: Path) -> None:
    (folder / "file").chmod(0o000)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("spoil", [_unreadable_folder, _folder_without_x, _unreadable_file, _pipe])
@pytest.mark.parametrize("depth", ["", "vllm", "vllm/deep"])
def test_what_cannot_be_read_is_not_passed_over(spoil: object, depth: str, tmp_path: Path) -> None:
    folder = tmp_path / "overlay" / "1.0" / depth
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x")
    assert callable(spoil)
    spoil(folder)
    with unprivileged(tmp_path):
        with pytest.raises(ForkError) as error:
            list(walk.files(tmp_path / "overlay" / "1.0", skip=()))
        assert str(folder) in str(error.value)
        with pytest.raises(ForkError):
            overlay.resolve(tmp_path / "overlay", "1.0")
    folder.chmod(0o755)
