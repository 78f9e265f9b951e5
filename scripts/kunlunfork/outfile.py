"""Files that a user names for a result."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kunlunfork.errors import ForkError

_EFFECTIVE = os.access in os.supports_effective_ids


def check(file: Path, *, parents: bool = False) -> None:
    """Refuse, before long work, a file that could not be written after it (raises `ForkError`).

    With `parents` its folders will be made.
    """
    folder = file.absolute().parent
    try:
        while parents and not os.path.lexists(folder):
            folder = folder.parent
        if file.is_dir():
            found = "a folder"
        elif not folder.is_dir():
            found = f"{folder} is not a folder"
        elif not os.access(file if file.exists() else folder, os.W_OK, effective_ids=_EFFECTIVE):
            found = os.strerror(errno.EACCES)
        else:
            return
    except OSError as e:
        found = e.strerror or str(e)
    raise ForkError(
        f"{file} cannot be written", found=found, expected="the name of a file that this user may write",
        fix="name another file",
    )  # fmt: skip
