from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.paths import REGULAR
from kunlunfork.pins import Pin
from kunlunfork.record import digest
from kunlunfork.sources import wheel

INFO = "vllm-0.25.1+cpu.dist-info"
FILES = {
    "vllm/__init__.py": b"a\r\n",
    "vllm/x,y.py": b"b",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1+cpu\n\ntext\n" + b"z" * 3000,
}


@pytest.fixture
def pin(content: Content) -> Pin:
    return content.pin("0.25.1")


def _record(files: dict[str, bytes]) -> bytes:
    lines = [b'"%s",%s,%s\n' % (name.encode(), *digest(data)) for name, data in files.items()]
    return b"".join(lines) + f"{INFO}/RECORD,,\n".encode()


def _wheel(path: Path, files: dict[str, bytes], record: bytes | None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            z.writestr(name, data)
        if record is not None:
            z.writestr(f"{INFO}/RECORD", record)
    return path


def test_a_wheel_that_is_as_its_record_says(pin: Pin, tmp_path: Path) -> None:
    file = _wheel(tmp_path / "a.whl", FILES, _record(FILES))
    found = {path: data for path, mode, data in wheel.members(file, pin) if mode == REGULAR}
    assert found == {**{n.encode(): d for n, d in FILES.items()}, f"{INFO}/RECORD".encode(): _record(FILES)}


META = f"{INFO}/METADATA"
WRONG = {
    "changed": ({**FILES, "vllm/__init__.py": b"evil"}, _record(FILES)),
    "added": ({**FILES, "vllm/evil.py": b"evil"}, _record(FILES)),
    "missing": ({n: d for n, d in FILES.items() if n != "vllm/x,y.py"}, _record(FILES)),
    "listed without a hash": (FILES, _record(FILES).replace(b",".join(digest(b"b")), b",")),
    "listed with md5": (FILES, _record(FILES).replace(digest(b"b")[0], b"md5=abc")),
    "no RECORD": (FILES, None),
    "junk in RECORD": (FILES, b'"'),
    "no METADATA": ({"vllm/__init__.py": b"a"}, _record(FILES)),
    "another version": ({**FILES, META: b"Name: vllm\nVersion: 0.24.0\n"}, _record(FILES)),
    "an empty version": ({**FILES, META: b"Name: vllm\nVersion:\n"}, _record(FILES)),
    "no version": ({**FILES, META: b"Name: vllm\n"}, _record(FILES)),
    "no version at all": ({**FILES, META: b"Name: vllm\nVersion: latest\n"}, _record(FILES)),
}


@pytest.mark.parametrize(("files", "record"), WRONG.values(), ids=WRONG.keys())
def test_another_wheel_is_refused_and_named(
    files: dict[str, bytes], record: bytes | None, pin: Pin, tmp_path: Path
) -> None:
    file = _wheel(tmp_path / "a.whl", files, record)
    with pytest.raises(ForkError) as error:
        list(wheel.members(file, pin))
    assert str(file) in error.value.message


@pytest.mark.parametrize("name", [META, f"{INFO}/RECORD", "vllm/__init__.py"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_damage_within_a_member(name: str, at: int, pin: Pin, tmp_path: Path) -> None:
    file = _wheel(tmp_path / "a.whl", FILES, _record(FILES))
    with zipfile.ZipFile(file) as z:
        offset = z.getinfo(name).header_offset + 30 + len(name)
    data = bytearray(file.read_bytes())
    data[offset + at] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(ForkError, match=r"a\.whl"):
        list(wheel.members(file, pin))
