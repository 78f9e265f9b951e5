"""How conflicts were resolved before, known by the three blobs (and the path): `ci/resolutions/*.patch` of a clone.

A resolution is kept as a header and the difference to upstream's file, so that a reviewer can read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kunlunfork import patchwrite, paths
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import parse_patch
from kunlunfork.patchheader import parse_header
from kunlunfork.paths import REGULAR, Entry
from kunlunfork.preimage import apply_hunks
from kunlunfork.rebase import check
from kunlunfork.rebase.carry import Resolution
from kunlunfork.rebase.outcome import FILE_DIRECTORY, MODE, Conflict
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.scopes import is_python

FOLDER = Path("ci") / "resolutions"
_GONE = "deleted"
_FIELDS = ("Base", "New", "Ours", "Path", "Result")
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Remembered:
    """One file of the folder: three blob ids and the path, the id of the result (or `deleted`), the difference."""

    key: Key
    result: str
    raw: bytes


def name_of(key: Key) -> str:
    return sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()[:16] + ".patch"


def load(root: Path) -> Mapping[Key, Remembered]:
    """What a clone remembers (raises `ForkError` where a file cannot be read)."""
    found = {}
    folder = root / FOLDER
    for file in sorted(folder.glob("*.patch")) if folder.is_dir() else ():
        try:
            raw = paths.read_plain(file)
        except OSError as e:
            raise ForkError(f"{file} cannot be read", found=e.strerror or str(e)) from e
        head = parse_header(raw)
        old, new, ours, where, result = (head.get(name) or "" for name in _FIELDS)
        if all((old, new, ours, where, result)):
            key = (old, new, ours, _path(where))
            found[key] = Remembered(key, result, raw)
    return found


def _path(text: str) -> str:
    """A path may have a newline in it, so it is written as JSON writes it."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def replay(store: TreeStore, conflict: Conflict, known: Remembered) -> Resolution | None:
    """The resolution, where it gives exactly the file that it says, and that still parses; else None."""
    how = f"resolved as before (ci/resolutions/{name_of(known.key)})"
    if conflict.kind in (MODE, FILE_DIRECTORY) or known.key != conflict.key:
        return None
    if known.result == _GONE:
        return Resolution({conflict.path: None}, how)
    mode = next((e.mode for e in (conflict.new, conflict.ours) if e is not None), REGULAR)
    before = b"" if conflict.new is None else store.blob(conflict.new.blob)
    after: bytes | int = before
    if b"\ndiff --git " in known.raw:
        try:
            files = parse_patch("a resolution", known.raw).files
        except ForkError:
            return None
        if len(files) != 1 or files[0].binary:
            return None
        after = apply_hunks(before, files[0].hunks)
    if not isinstance(after, bytes) or paths.blob_id(after) != known.result:
        return None
    if check.fault(after, python=is_python(conflict.path)) is not None:
        return None
    return Resolution({conflict.path: Entry(mode, store.put(after))}, how)


def write(store: TreeStore, conflict: Conflict, made: Resolution, *, patch: str, version: str) -> bytes | None:
    """The file of a resolution; None where it is none that three blobs tell (modes, several files, binaries)."""
    if conflict.kind in (MODE, FILE_DIRECTORY) or set(made.files) != {conflict.path}:
        return None
    entry = made.files[conflict.path]
    modes = {e.mode for e in (conflict.old, conflict.new, conflict.ours, entry) if e is not None}
    if len(modes) > 1:
        return None
    result = _GONE if entry is None else entry.blob
    values = (*conflict.key[:3], json.dumps(conflict.key[3]), result)
    fields = [f"{name}: {value}" for name, value in zip(_FIELDS, values, strict=True)]
    where = paths.show(conflict.path)
    head = [f"Subject: {patch} onto vLLM {version}: {where} ({conflict.kind})", *fields, "", "---", ""]
    raw = "\n".join(head).encode("utf-8", "surrogateescape")
    empty = store.empty()
    trees = [store.replace(empty, {conflict.path: e}) for e in (conflict.new, entry)]
    if entry is not None and trees[0] != trees[1]:
        raw += patchwrite.diff(store.repository, trees[0], trees[1], [conflict.path])
        if b"GIT binary patch" in raw:
            return None
    known = Remembered(conflict.key, result, raw)
    return raw if replay(store, conflict, known) is not None else None
