from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.sources import archive
from kunlunfork.sources.archive import members


def _tar(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return path


def _info(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname, info.mode = len(data), kind, link, mode
    return info


def _file(name: str, data: bytes = b"x", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    return _info(name, data, mode=mode), data


def test_an_sdist_gives_bytes_modes_and_links_without_its_top_folder(tmp_path: Path) -> None:
    odd = 't/a dir/f é\u2028".py'
    file = _tar(
        tmp_path / "t.tar.gz",
        (_info("t", kind=tarfile.DIRTYPE), b""),
        _file("t/vllm/a.py", b"a\r\nb"),
        _file("t/run.sh", b"#!", 0o755),
        _file("t/empty", b""),
        _file(odd, b"\xff\x00"),
        (_info("t/vllm/link", kind=tarfile.SYMTYPE, link="../run.sh"), b""),
    )
    assert list(members(file)) == [
        (b"vllm/a.py", paths.REGULAR, b"a\r\nb"),
        (b"run.sh", paths.EXECUTABLE, b"#!"),
        (b"empty", paths.REGULAR, b""),
        (odd[2:].encode(), paths.REGULAR, b"\xff\x00"),
        (b"vllm/link", paths.SYMLINK, b"../run.sh"),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        _file("t/../../etc/passwd"),
        _file("/etc/passwd"),
        _file("t//vllm/a.py"),
        _file("t/vllm/./a.py"),
        _file("t/.git/config"),
        _file("t/vllm/.GIT/hooks/post-checkout"),
        _file("t/.kunlunfork/lock.json"),
        _file("other/vllm/a.py"),
        _file("lonely"),
        (_info("t/dev", kind=tarfile.CHRTYPE), b""),
        (_info("t/blk", kind=tarfile.BLKTYPE), b""),
        (_info("t/pipe", kind=tarfile.FIFOTYPE), b""),
        (_info("t/hard", kind=tarfile.LNKTYPE, link="t/ok"), b""),
        (_info("t/link", kind=tarfile.SYMTYPE, link="/etc/passwd"), b""),
        (_info("t/a/link", kind=tarfile.SYMTYPE, link="../../x"), b""),
        (_info("t/link", kind=tarfile.SYMTYPE, link=""), b""),
        _file("t/ok", b"second"),
        _file("t/ok/below"),
    ],
    ids=lambda e: f"{e[0].name} {e[0].type!r}",
)
def test_hostile_members_are_refused(entry: tuple[tarfile.TarInfo, bytes], tmp_path: Path) -> None:
    file = _tar(tmp_path / "t.tar.gz", _file("t/ok"), entry)
    with pytest.raises(ForkError):
        list(members(file))


def test_a_link_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    """The classic: a link to outside, then a file through it."""
    file = _tar(
        tmp_path / "t.tar.gz", (_info("t/d", kind=tarfile.SYMTYPE, link="e"), b""), _file("t/e/x"), _file("t/d/y")
    )
    with pytest.raises(ForkError, match="not an archive"):
        list(members(file))


def test_bombs_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 1000)
    monkeypatch.setattr(archive, "MAX_FILE", 600)
    for entries in (
        [_file("t/big", b"0" * 601)],
        [_file(f"t/{i}", b"0" * 500) for i in range(3)],
    ):
        with pytest.raises(ForkError, match="not an archive"):
            list(members(_tar(tmp_path / "t.tar.gz", *entries)))
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    with pytest.raises(ForkError, match="not an archive"):
        list(members(_tar(tmp_path / "t.tar.gz", *[_file(f"t/{i}", b"") for i in range(4)])))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = _tar(tmp_path / "t.tar.gz", *[_file(f"t/{i}", bytes(range(256)) * 40) for i in range(20)]).read_bytes()
    for name, data in {
        "cut.tar.gz": whole[: len(whole) // 2],
        "junk.tar.gz": b"junk" * 100,
        "empty.tar.gz": b"",
        "flip.tar.gz": whole[:60] + bytes([whole[60] ^ 0xFF]) + whole[61:],
        "text.tar.gz": gzip.compress(b"no tar"),
        "junk.whl": b"junk" * 100,
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ForkError, match=name.replace(".", r"\.")):
            list(members(tmp_path / name))


def test_a_wheel(tmp_path: Path) -> None:
    file = tmp_path / "t.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("vllm/__init__.py", b"a\r\n")
        run = zipfile.ZipInfo("vllm/run")
        run.external_attr = 0o100755 << 16
        wheel.writestr(run, b"#!")
    assert list(members(file)) == [
        (b"vllm/__init__.py", paths.REGULAR, b"a\r\n"),
        (b"vllm/run", paths.EXECUTABLE, b"#!"),
    ]
    for name, attr in (("../x", 0), ("/x", 0), ("link", 0o120777 << 16)):
        with zipfile.ZipFile(file, "w") as wheel:
            info = zipfile.ZipInfo(name)
            info.external_attr = attr
            wheel.writestr(info, b"/etc/passwd")
        with pytest.raises(ForkError):
            list(members(file))
