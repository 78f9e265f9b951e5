"""Paths as git quotes them in a patch: `"a/f \\303\\251\\".py"`."""

from __future__ import annotations

import re

_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r",
    b'"': b'"', b"\\": b"\\",
}  # fmt: skip
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})')
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def _replace(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return _ESCAPES.get(code) or bytes([int(code, 8)])


def unquote_prefix(text: bytes) -> tuple[bytes, bytes]:
    """The quoted path that `text` starts with, and what follows its closing quote.

    Raises:
        ValueError: no opening or closing quote, or an escape that git does not write.
    """
    match = _QUOTED.match(text)
    if match is None:
        raise ValueError("no closing quote")
    if b"\\" in _ESCAPE.sub(b"", match[1]):
        raise ValueError("an unknown escape")
    return _ESCAPE.sub(_replace, match[1]), text[match.end() :]


def unquote(text: bytes) -> bytes:
    """A whole path, quoted or not (raises `ValueError`)."""
    if not text.startswith(b'"'):
        return text
    path, rest = unquote_prefix(text)
    if rest:
        raise ValueError("text after the closing quote")
    return path
