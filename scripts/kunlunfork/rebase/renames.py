"""Where a file went that the new release does not have: said by a map, or inferred and then only without doubt.

Git pairs files by how alike they are, so that of two look-alike or nearly empty files any may be taken for the other
(0.25.1 -> 0.33.0: `autoregressive/__init__.py` for `dflash2/__init__.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kunlunfork import paths
from kunlunfork.paths import SYMLINK
from kunlunfork.rebase.treestore import Between, TreeStore

# Lines that say something: this long, and no comment or import, which many files share.
_TELLING = 12
_FEWEST = 8
_ALIKE, _AHEAD, _WORTH_SAYING = 0.5, 0.2, 0.3


# Between the path (on the new release) and the old name of a class or function, in a map of renames.
SCOPE = b"::"


@dataclass(frozen=True)
class Found:
    """Where a file went (None: nowhere, or it cannot be told), which files it may have become, and what to say."""

    target: bytes | None
    candidates: tuple[bytes, ...]
    why: str


def mapped(renames: Mapping[bytes, bytes], path: bytes) -> bytes | None:
    """What a map makes of a path. A key that ends with '/' is a folder; the longest one counts."""
    if path in renames:
        return renames[path]
    folders = [key for key in renames if key.endswith(b"/") and path.startswith(key)]
    best = max(folders, key=len, default=None)
    return None if best is None else renames[best] + path[len(best) :]


def scopes(renames: Mapping[bytes, bytes]) -> dict[bytes, dict[bytes, bytes]]:
    """The classes and functions of each file that have another name now: path -> old name -> new name."""
    found: dict[bytes, dict[bytes, bytes]] = {}
    for key, new in renames.items():
        path, mark, old = key.rpartition(SCOPE)
        if mark:
            found.setdefault(path, {})[old] = new
    return found


def rename_scopes(data: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """Python whose definitions have other names; what refers to them stays."""
    old = b"|".join(map(re.escape, names))
    return re.sub(rb"(?m)^([ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+)(%s)\b" % old, lambda m: m[1] + names[m[2]], data)


def infer(store: TreeStore, release: Between, path: bytes, data: bytes) -> Found:
    """Where the file `path` with the bytes `data` went.

    Args:
        release: what differs between the two releases.
    """
    own = _lines(data)
    suffix = path.rpartition(b".")[2] if b"." in path.rpartition(b"/")[2] else b""
    scores: list[tuple[float, bytes]] = []
    for other, (was, now) in release.items():
        if was is not None or now is None or now.mode == SYMLINK or (suffix and not other.endswith(b"." + suffix)):
            continue
        theirs = _lines(store.blob(now.blob))
        most = max(own.total(), theirs.total())
        scores.append(((own & theirs).total() / most if most else 1.0, other))
    scores.sort(key=lambda pair: (-pair[0], pair[1]))
    near = tuple(name for score, name in scores if score >= _WORTH_SAYING)[:5]
    shown = ", ".join(f"{paths.show(name)} ({score:.0%} alike)" for score, name in scores[:3] if score >= _WORTH_SAYING)
    if not near:
        return Found(None, (), "no file of the new release is like it")
    if len(own) < _FEWEST:
        return Found(None, near, f"it is too small to tell which file it became: {shown}")
    best, second = scores[0][0], scores[1][0] if len(scores) > 1 else 0.0
    if best < _ALIKE or best - second < _AHEAD:
        return Found(None, near, f"which file it became is in doubt: {shown}")
    return Found(scores[0][1], near, f"renamed, {best:.0%} alike")


def _lines(data: bytes) -> Counter[bytes]:
    lines = (line.strip() for line in data.split(b"\n"))
    return Counter(x for x in lines if len(x) >= _TELLING and not x.startswith((b"#", b"import ", b"from ")))
