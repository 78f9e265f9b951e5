"""Every file below a folder; what cannot be looked at is an error, never left out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import Entry


def files(folder: Path, *, skip: Collection[str]) -> Iterator[tuple[bytes, Entry, bytes]]:
    """Yield (path below `folder`, entry, bytes), links not followed; nothing whose name is in `skip`.

    Raises:
        ForkError: something that cannot be read, or is neither a file, a link nor a folder.
    """
    for top, folders, names in os.walk(folder, onerror=_unreadable):
        links = [name for name in folders if (Path(top) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in skip)
        for name in sorted({*names, *links}.difference(skip)):
            full = Path(top) / name
            path = paths.from_disk(full.relative_to(folder))
            found = paths.read_entry(folder, path)
            if found is None:
                raise ForkError(f"{full} vanished while it was read", fix="run the command again")
            yield path, *found


def _unreadable(error: OSError) -> NoReturn:
    raise ForkError(
        f"{error.filename} cannot be read",
        found=error.strerror or str(error),
        expected="a folder that this user may read",
    ) from error
