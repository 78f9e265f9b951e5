from __future__ import annotations

import zlib
from base64 import b85encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunlunfork.binarypatch import LIMIT, check_delta, unpack


def pack(data: bytes) -> list[bytes]:
    """The lines that git writes for these bytes, already packed."""
    lines = []
    for at in range(0, len(data), 52):
        part = data[at : at + 52]
        length = len(part) + (64 if len(part) <= 26 else 70)
        lines.append(b"%c" % length + b85encode(part, pad=True))
    return lines


@given(st.binary(max_size=500))
def test_round_trip(data: bytes) -> None:
    lines = pack(zlib.compress(data))
    assert unpack(lines, len(data)) == data
    with pytest.raises(ValueError, match="claimed"):
        unpack(lines, len(data) + 1)
    if data:
        with pytest.raises(ValueError, match="claimed"):
            unpack(lines, len(data) - 1)


@given(
    st.lists(st.binary(min_size=1, max_size=80).map(lambda b: b.replace(b"\n", b"A")), max_size=4),
    st.integers(0, 10**12),
)
def test_anything_else_is_a_value_error(lines: list[bytes], size: int) -> None:
    with suppress(ValueError):
        assert len(unpack(lines, size)) == size


def test_what_follows_the_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="claimed"):
        unpack(pack(zlib.compress(b"data") + b"more"), 4)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    lines = pack(zlib.compress(bytes(1 << 20)))
    assert len(unpack(lines, 1 << 20)) == 1 << 20
    with pytest.raises(ValueError, match="cannot hold"):
        unpack(lines, LIMIT + 1)
    with pytest.raises(ValueError, match="claimed"):
        unpack(lines, 1000)


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += b"%c" % (value & 0x7F | 0x80)
        value >>= 7
    return out + b"%c" % value


def test_deltas() -> None:
    check_delta(varint(10) + varint(LIMIT))
    for bad in (b"", b"\x80", varint(10), b"\xff" * 40, varint(10) + varint(LIMIT + 1)):
        with pytest.raises(ValueError, match="delta"):
            check_delta(bad)
