# SPDX-License-Identifier: Apache-2.0
"""What the host knows about the batch that is being sampled, for launchers that are not told by an argument."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Facts(threading.local):
    all_rows_greedy = False


_FACTS = _Facts()


def all_rows_greedy() -> bool:
    """Whether no row of the batch draws random numbers; False where nobody has said so."""
    return _FACTS.all_rows_greedy


@contextmanager
def batch(all_rows_greedy: bool) -> Iterator[None]:
    """Say so to this thread's launchers, until the block ends."""
    before = _FACTS.all_rows_greedy
    _FACTS.all_rows_greedy = all_rows_greedy
    try:
        yield
    finally:
        _FACTS.all_rows_greedy = before
