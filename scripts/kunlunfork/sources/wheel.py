"""A wheel as a source: of the right version, and every file as its RECORD says."""

from __future__ import annotations

import hashlib
import os
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path

from kunlunfork.errors import ForkError
from kunlunfork.paths import show
from kunlunfork.pins import Pin, parse_version, public
from kunlunfork.record import read_record
from kunlunfork.sources import archive
from kunlunfork.sources.distinfo import headers
from kunlunfork.sources.members import Member

_AGAIN = "get it again"
# What RECORD does not list with a hash: itself, and signatures of it.
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_MAX_RECORD = 64 << 20


def members(wheel: Path, pin: Pin) -> Iterator[Member]:
    """The files of a wheel of the pin's version.

    Raises:
        ForkError: at once, where it is no wheel or of another version; while it is read, where it is damaged, hostile
            or not what its RECORD lists.
    """
    try:
        with zipfile.ZipFile(wheel) as z:
            info = next((n for n in z.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")), None)
            if info is None:
                raise ForkError(f"{wheel} is not a wheel", found="no METADATA", fix=_AGAIN)
            folder = info.rpartition("/")[0]
            metadata = _read(z, info, 1 << 20)
            if f"{folder}/RECORD" not in z.namelist():
                raise ForkError(f"{wheel} is not a whole wheel", found="no RECORD", fix=_AGAIN)
            record = _read(z, f"{folder}/RECORD", _MAX_RECORD)
    except archive.DAMAGED as e:
        raise ForkError(f"{wheel} is damaged", found=str(e) or type(e).__name__, expected="a wheel", fix=_AGAIN) from e
    version = headers(metadata)[1]
    if not version:
        raise ForkError(f"{wheel} does not say which version it is", found=f"no Version in {info}", fix=_AGAIN)
    parse_version(version, what=f"version (in {info} of {wheel})")
    if public(version) != public(pin.version):
        raise ForkError(
            f"{wheel} is another version of vLLM",
            found=version,
            expected=pin.version,
            fix="name a wheel of that version, or the wheel's own with --vllm (see: kunlunfork pins)",
        )
    try:
        listed = read_record(record)
    except ForkError as e:
        raise ForkError(f"{e.message} in {wheel}", found=e.found, expected=e.expected, fix=_AGAIN) from e
    return _compared(wheel, os.fsencode(folder), listed)


def _read(z: zipfile.ZipFile, name: str, limit: int) -> bytes:
    with z.open(name) as file:
        return file.read(limit)


def _compared(wheel: Path, folder: bytes, record: Mapping[bytes, tuple[bytes, bytes]]) -> Iterator[Member]:
    own = {folder + b"/" + name.encode() for name in _UNLISTED}
    missing = set(record) - own
    for path, mode, data in archive.members(wheel):
        if path not in own:
            expected, _ = record.get(path, (b"", b""))
            algorithm, _, value = expected.partition(b"=")
            if algorithm not in (b"sha256", b"sha384", b"sha512"):
                raise _other(wheel, f"{show(path)}: {'no hash in RECORD' if path in record else 'not in RECORD'}")
            digest = urlsafe_b64encode(hashlib.new(algorithm.decode(), data).digest()).rstrip(b"=")
            if digest != value.rstrip(b"="):
                raise _other(wheel, f"{show(path)}: {show(algorithm + b'=' + digest)}, RECORD says {show(expected)}")
            missing.discard(path)
        yield path, mode, data
    if missing:
        raise _other(wheel, f"{show(min(missing))} is in RECORD, but not in the wheel")


def _other(wheel: Path, found: str) -> ForkError:
    return ForkError(
        f"{wheel} is not the wheel that was built", found=found, expected="every file as RECORD lists it", fix=_AGAIN
    )
