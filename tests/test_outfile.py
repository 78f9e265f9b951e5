from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from unprivileged import unprivileged

from kunlunfork import outfile
from kunlunfork.errors import ForkError


@pytest.mark.parametrize(
    ("name", "parents", "fine"),
    [
        ("new", False, True),
        ("file", False, True),
        ("folder", False, False),
        ("no/new", False, False),
        ("no/such/new", True, True),
        ("file/new", True, False),
        ("file/new", False, False),
        ("closed/new", False, False),
        ("closed/sub/new", True, False),
        ("read-only", False, False),
    ],
)
def test_only_what_can_be_written_later(name: str, parents: bool, fine: bool, tmp_path: Path) -> None:
    for folder in ("folder", "closed"):
        (tmp_path / folder).mkdir()
    for file in ("file", "read-only"):
        (tmp_path / file).write_text("kept")
    (tmp_path / "closed").chmod(0o555)
    (tmp_path / "read-only").chmod(0o444)
    (tmp_path / "file").chmod(0o666)
    tmp_path.chmod(0o777)
    with unprivileged(tmp_path):
        if fine:
            outfile.check(tmp_path / name, parents=parents)
        else:
            with pytest.raises(ForkError, match="cannot be written"):
                outfile.check(tmp_path / name, parents=parents)
    assert (tmp_path / "file").read_text() == "kept"


def test_whole_or_as_before(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with outfile.writing(file) as out:
        out.write(b"one")
        assert not file.exists()
    assert file.read_bytes() == b"one"
    with pytest.raises(KeyboardInterrupt), outfile.writing(file) as out:
        out.write(b"two")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/real")
    for data in (b"new", b"again"):
        with outfile.writing(tmp_path / "link") as out:
            out.write(data)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there/real").read_bytes() == data


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with outfile.writing(pipe) as out:
        out.write(b"through")
    reader.join()
    assert read == [b"through"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_device_stays_one() -> None:
    with pytest.raises(ForkError, match="cannot be written"), outfile.writing(Path("/dev/full")) as out:
        out.write(b"x" * 100_000)
    assert Path("/dev/full").is_char_device()
    assert not list(Path("/dev").glob(".full*"))
