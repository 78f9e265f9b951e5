"""Parts of a vLLM tree by name, as `patches/areas.toml` has them: what `drift` and `diff` are asked about."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kunlunfork.errors import ForkError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "areas.toml"
_TOKEN = re.compile(r"\*\*/|\*\*|\*|[^*]+")


@dataclass(frozen=True)
class Area:
    """A name and the globs of its paths: `*` stays in one folder; `**/` in front or between means any number of
    folders, `/**` at the end everything below."""

    name: str
    globs: tuple[str, ...]

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(_translate(glob) for glob in self.globs))

    def has(self, path: bytes) -> bool:
        """Whether a path of a tree (with '/', from its root) lies in the area."""
        return self._pattern.fullmatch(path) is not None


def _translate(glob: str) -> bytes:
    parts = {"**/": b"(?:.+/)?", "**": b".+", "*": b"[^/]*"}
    return b"".join(parts.get(t) or re.escape(os.fsencode(t)) for t in _TOKEN.findall(glob))


def load(patches: Path) -> dict[str, Area]:
    """The areas by name, in the order of the file (raises `ForkError` where it is missing or not valid).

    Args:
        patches: the folder `patches` of the fork's content.
    """
    file = patches / FILE
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ForkError(
            f"{file} cannot be read", found=str(e), expected="lists of globs by name", fix="restore it from git"
        ) from e
    found = {}
    for name, globs in raw.items():
        if not (isinstance(globs, list) and globs and all(_is_glob(glob) for glob in globs)):
            raise ForkError(
                f"{file}: {name} is not an area", found=repr(globs), expected='globs, such as ["vllm/v1/sample/**"]',
                fix="name paths of a vLLM tree from its root; ** stands alone between slashes",
            )  # fmt: skip
        found[name] = Area(name, tuple(globs))
    return found


def _is_glob(glob: object) -> bool:
    if not isinstance(glob, str) or not glob:
        return False
    parts = glob.split("/")
    return all(part not in ("", ".", "..") and ("**" not in part or part == "**") for part in parts) and parts != ["**"]


def find(patches: Path, names: Sequence[str]) -> tuple[Area, ...]:
    """The areas of these names, each once (raises `ForkError` where there is none of a name)."""
    known = load(patches) if names else {}
    for name in names:
        if name not in known:
            raise ForkError(
                f"there is no area {name}", found=name, expected=f"one of {', '.join(known)}",
                fix=f"see {patches / FILE}",
            )  # fmt: skip
    return tuple(known[name] for name in dict.fromkeys(names))
