# SPDX-License-Identifier: Apache-2.0
"""Launches that wait for one another, so that neighbours can go to the device as one.

A launcher that finds a block open here may leave its call in it and return tensors that are not written yet; all is
launched when the block ends. Who opens one vouches that until then nobody on the device reads what they write.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Calls = list[tuple[str, tuple[Any, ...]]]


class _Open(threading.local):
    calls: Calls | None = None


_OPEN = _Open()


def defer(name: str, arguments: tuple[Any, ...]) -> bool:
    """Leave a call to the block that this thread has open; False: there is none, launch it."""
    if _OPEN.calls is None:
        return False
    _OPEN.calls.append((name, arguments))
    return True


@contextmanager
def together(launch: Callable[[Calls], None]) -> Iterator[None]:
    """Collect calls until the block ends, then give them to `launch`, in order. An error drops them."""
    before, calls = _OPEN.calls, []
    _OPEN.calls = calls
    try:
        yield
    finally:
        _OPEN.calls = before
    launch(calls)
