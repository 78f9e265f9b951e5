"""What no file that a merge or a person made may have."""

from __future__ import annotations

import re

from kunlunfork import scopes
from kunlunfork.errors import ForkError

_MARKER = re.compile(rb"^(<{7}|>{7}|\|{7}|={7})( .*|\r?)$", re.MULTILINE)
_EDGE = re.compile(rb"^(<{7}|>{7}|\|{7})( .*|\r?)$", re.MULTILINE)


def fault(data: bytes, *, python: bool) -> str | None:
    """A conflict marker, or Python that does not parse, with its line; None for neither.

    A row of seven `=` alone is a heading in plain text.
    """
    marker = (_MARKER if python or _EDGE.search(data) else _EDGE).search(data)
    if marker is not None:
        line = data.count(b"\n", 0, marker.start()) + 1
        return f"line {line}: a conflict marker"
    if python:
        try:
            scopes.parse(data, where="the file")
        except ForkError as e:
            return f"{e.message.removeprefix('the file').lstrip(', ')} ({e.found})"
    return None
