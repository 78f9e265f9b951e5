"""One half of a `GIT binary patch`: base 85 lines around a zlib stream of a stated size."""

from __future__ import annotations

import zlib
from base64 import b85decode
from collections.abc import Sequence

# zlib cannot do better than 1:1032, so a larger claim is a lie and is refused before anything is unpacked.
_BEST_RATIO = 1032
# What one binary file of a patch may hold. A delta names the size of its result, which git allocates unasked.
LIMIT = 1 << 28


def _length(code: int) -> int:
    """How many bytes a line holds, from its first byte: A-Z are 1 to 26, a-z are 27 to 52."""
    if 65 <= code <= 90:
        return code - 64
    if 97 <= code <= 122:
        return code - 70
    raise ValueError("a line whose first character is not its length")


def _packed(lines: Sequence[bytes]) -> bytes:
    parts = []
    for line in lines:
        length = _length(line[0])
        if len(line) - 1 != -(-length // 4) * 5:
            raise ValueError("a line that is longer or shorter than its first character says")
        parts.append(b85decode(line[1:])[:length])
    return b"".join(parts)


def unpack(lines: Sequence[bytes], size: int) -> bytes:
    """The bytes that `lines` (none of them empty) hold.

    Args:
        size: how many bytes there must be, as the `literal` or `delta` line says.

    Raises:
        ValueError: damaged, or of another size.
    """
    packed = _packed(lines)
    if size > LIMIT or size > len(packed) * _BEST_RATIO:
        raise ValueError(f"{size} bytes are claimed, which {len(packed)} packed bytes cannot hold")
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, size + 1)
    except zlib.error as e:
        raise ValueError("a damaged zlib stream") from e
    if len(data) != size or not stream.eof or stream.unused_data:
        raise ValueError(f"other than the {size} bytes that are claimed")
    return data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("a damaged delta")


def check_delta(delta: bytes) -> None:
    """Refuse a delta whose result would be larger than `LIMIT` (raises `ValueError`)."""
    _, at = _varint(delta, 0)
    result, _ = _varint(delta, at)
    if result > LIMIT:
        raise ValueError(f"a delta that makes {result} bytes")
