"""Files that a user names for a result."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kunlunfork.errors import ForkError


def check(file: Path) -> None:
    """Refuse, before long work, a file that could not be written after it (raises `ForkError`)."""
    try:
        if file.is_dir():
            found = "a folder"
        elif not file.parent.is_dir():
            found = f"{file.parent} is not a folder"
        elif not os.access(file if file.exists() else file.parent, os.W_OK):
            found = os.strerror(errno.EACCES)
        else:
            return
    except OSError as e:
        found = e.strerror or str(e)
    raise ForkError(
        f"{file} cannot be written", found=found, expected="the name of a file that this user may write",
        fix="name another file",
    )  # fmt: skip
