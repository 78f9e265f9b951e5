"""Locks between processes, on files of the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kunlunfork.errors import ForkError


@contextlib.contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold the lock `file`, after waiting for whoever has it.

    Raises:
        ForkError: it cannot be made or locked there.
    """
    from filelock import FileLock  # 15 ms to import, which most commands can do without

    lock = FileLock(file)
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as e:
        raise ForkError(
            f"{file} cannot be locked",
            found=(e.strerror if isinstance(e, OSError) else None) or str(e),
            expected="a folder on a file system with locks, that this user may write",
            fix="name another cache folder: KUNLUNFORK_CACHE=DIR",
        ) from e
    try:
        yield
    finally:
        lock.release()
