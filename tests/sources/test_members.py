from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from kunlunfork import walk
from kunlunfork.errors import ForkError
from kunlunfork.paths import REGULAR, SYMLINK
from kunlunfork.sources.archive import members
from kunlunfork.sources.base import _files
from kunlunfork.sources.members import Member


def _link(path: str, target: str) -> Member:
    return path.encode(), SYMLINK, target.encode()


def _file(path: str) -> Member:
    return path.encode(), REGULAR, b"x"


HOSTILE = {
    "up by a link to the root": [_link("p/q", ".."), _link("r", "p/q/..")],
    "the same, used before it is there": [_link("r", "p/q/.."), _link("p/q", "..")],
    "three links": [_link("a/b/c", "../.."), _link("a/d", "b/c/a"), _link("e", "a/d/../..")],
    "the classic": [_link("a/x", ".."), _link("a/y", "x/.."), _link("a/z", "y/etc")],
    "round": [_link("a", "b"), _link("b", "a")],
    "itself": [_link("a", "a")],
    "a file below a link": [_link("d", "e"), _file("d/x"), _file("e/y")],
    "a file below a link that comes later": [_file("d/x"), _link("d", "e"), _file("e/y")],
    "a link below a link": [_link("d", "e"), _link("d/x/y", ".."), _file("e/y")],
    "plainly out": [_link("kunlun", "../")],
    "deep": [_file("/".join("d" * 2500))],
    "a long name": [_file("d/" + "n" * 256)],
    "long": [_file("/".join(["d" * 250] * 30))],
}
FINE = [
    _link("vllm/link", "../run.sh"), _file("run.sh"), _link("a/b/up", "../.."), _link("c", "a/b/up/run.sh"),
    _link("dangling", "not/there"), _link("dot", "."), _link("d2", "dot/vllm"), _file("/".join("d" * 90)),
]  # fmt: skip


def _sdist(folder: Path, files: list[Member]) -> Path:
    file = folder / "t.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for path, mode, data in files:
            info = tarfile.TarInfo("t/" + path.decode())
            if mode == SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, data.decode()
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file


def _unpacked(folder: Path, files: list[Member]) -> Path:
    root = folder / "tree"
    for path, mode, data in files:
        full = root / os.fsdecode(path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.symlink_to(data.decode()) if mode == SYMLINK else full.write_bytes(data)
    return root


@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_link_leads_out_of_an_sdist(files: list[Member], tmp_path: Path) -> None:
    with pytest.raises(ForkError):
        list(members(_sdist(tmp_path, files)))


def test_links_within_the_tree_are_fine(tmp_path: Path) -> None:
    assert list(members(_sdist(tmp_path, FINE))) == FINE
    assert sorted(_files(_unpacked(tmp_path, FINE))) == sorted(FINE)


@pytest.mark.parametrize("name", ["up by a link to the root", "three links", "the classic", "round", "plainly out"])
def test_no_link_leads_out_of_a_folder(name: str, tmp_path: Path) -> None:
    root = _unpacked(tmp_path, HOSTILE[name])
    assert len(list(walk.files(root, skip=()))) == len(HOSTILE[name])
    with pytest.raises(ForkError):
        list(_files(root))


def test_a_member_below_a_link_is_refused_before_it_is_written(tmp_path: Path) -> None:
    seen = []
    with pytest.raises(ForkError, match="not an archive"):
        for path, _, _ in members(_sdist(tmp_path, HOSTILE["a file below a link"])):
            seen.append(path)
    assert seen == [b"d"]
