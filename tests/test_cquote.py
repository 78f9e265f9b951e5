from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchkit import quote

from kunlunfork.cquote import unquote, unquote_prefix


@given(st.binary())
def test_every_path(path: bytes) -> None:
    assert unquote(quote(path)) == path
    assert unquote_prefix(quote(path) + b' b/x "') == (path, b' b/x "')


def test_named_escapes() -> None:
    assert unquote(rb'"\a\b\t\n\v\f\r\"\\ \303\251"') == b'\a\b\t\n\v\f\r"\\ \xc3\xa9'
    assert unquote(rb"plain\n") == rb"plain\n"


@pytest.mark.parametrize(
    "text", [b'"', b'"a', b'"a\\"', b'"a"b', rb'"\x41"', rb'"\400"', rb'"\7"', rb'"\779"', b'"\\\n"']
)
def test_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        unquote(text)
