"""Bytecode that Python keeps of a source file."""

from __future__ import annotations

import re
from pathlib import Path

from kunlunfork.errors import ForkError

# TAG[.opt-N].pyc, of any interpreter. A tag has no dot, so `foo.bar.cpython-312.pyc` is not one of foo.py;
# only pytest's tag ends with a version number.
_TAIL = re.compile(r"[^.]+(?:-pytest-[0-9][\w.+]*)?(?:\.opt-\w+)?\.pyc")


def stale_bytecode(path: Path) -> list[Path]:
    """The cached bytecode of `path` (a .py file, which need not exist), to be deleted once it has changed.

    Python compares time and size by default, but not for unchecked hash-based bytecode, and a file replaced
    within the same second by one of the same size goes unnoticed.

    Raises:
        ForkError: the `__pycache__` folder cannot be read.
    """
    cache = path.parent / "__pycache__"
    prefix = path.name.removesuffix(".py") + "."
    if path.suffix != ".py":
        return []
    try:
        entries = sorted(cache.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise ForkError(f"{cache} cannot be read", found=e.strerror or str(e)) from e
    return [
        entry
        for entry in entries
        if entry.name.startswith(prefix) and _TAIL.fullmatch(entry.name, len(prefix)) and not entry.is_dir()
    ]
