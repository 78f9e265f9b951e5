"""Files that a user names for a result."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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


@contextlib.contextmanager
def writing(file: Path) -> Iterator[IO[bytes]]:
    """A file that is there whole at the end of the block, or as it was where the block fails.

    A link is followed; a device or a pipe is written to, not replaced.

    Raises:
        ForkError: it cannot be written.
    """
    try:
        real = file.resolve()
        if os.path.lexists(real) and not real.is_file():
            with real.open("wb") as out:
                yield out
            return
        temporary = real.with_name(f".{real.name[:200]}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as out:
                yield out
            temporary.replace(real)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as e:
        raise ForkError(
            f"{file} cannot be written", found=e.strerror or str(e), fix="make space, or name another file"
        ) from e
