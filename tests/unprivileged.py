"""A user who may not do everything, also where the tests run as root."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def unprivileged(folder: Path) -> Iterator[None]:
    """Let root be nobody for a while, who can reach `folder` like everyone else."""
    if os.geteuid() != 0:
        yield
        return
    temporary = Path(tempfile.gettempdir()).resolve()
    for parent in (folder.resolve(), *folder.resolve().parents):
        if parent != temporary and parent.is_relative_to(temporary):
            parent.chmod(parent.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
