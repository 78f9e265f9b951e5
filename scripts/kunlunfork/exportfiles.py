"""The clone's files that a git tree was made from, and those that an export writes."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.paths import SYMLINK

# In the state folder of a git tree: the clone's files as apply or the last export left them.
MADE_FROM = "made-from.json"
MadeFrom = Mapping[str, str]


@dataclass(frozen=True)
class Write:
    """A file of the clone to be written, or deleted where `data` is None; `mode` is SYMLINK for a link."""

    path: Path
    data: bytes | None
    mode: int | None

    @property
    def blob(self) -> str | None:
        return None if self.data is None else paths.blob_id(self.data)


def blob_at(path: Path) -> str | None:
    """The blob id of what lies there, None for nothing."""
    found = paths.read_entry(path.parent, os.fsencode(path.name))
    return None if found is None else found[0].blob


def made_from(fork: Fork) -> dict[str, str]:
    """The files of the clone that a fork consists of, relative to the clone, each with its blob id."""
    found = {f"patches/{fork.pin.version}/{p.name}": paths.blob_id(p.raw) for p in fork.patches}
    for path, file in fork.overlay.files.items():
        found[f"overlay/{file.layer}/{paths.to_text(path)}"] = file.entry.blob
    return found


def save(state: Path, files: MadeFrom, clone: Path | None) -> None:
    """Write down the files and the clone that they lie in (None for the content inside the package)."""
    body = {"schema": 1, "clone": None if clone is None else str(clone.absolute()), "files": dict(files)}
    temporary = state / f"{MADE_FROM}.new"
    temporary.write_text(json.dumps(body, indent=0, sort_keys=True), encoding="utf-8")
    temporary.replace(state / MADE_FROM)


def clone(state: Path) -> Path | None:
    """The clone that the tree was made from, where it is still there."""
    try:
        known = json.loads((state / MADE_FROM).read_bytes()).get("clone")
    except (OSError, ValueError, AttributeError):
        return None
    return Path(known) if isinstance(known, str) and (Path(known) / "patches").is_dir() else None


def load(state: Path) -> MadeFrom:
    """What `save` wrote (raises `ForkError`)."""
    file = state / MADE_FROM
    try:
        raw = json.loads(file.read_bytes())
        files = raw["files"]
        if raw["schema"] != 1 or not all(isinstance(x, str) for pair in files.items() for x in pair):
            raise ValueError("another schema")
    except FileNotFoundError as e:
        raise ForkError(
            f"{state.parent.parent} does not say what it was made from", found=f"no {file}",
            expected="a tree that kunlunfork apply --git made: a clone of one has no record of the patches",
            fix="fetch your commits into the tree that apply made, and export there",
        ) from e  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ForkError(f"{file} cannot be read", found=str(e), fix="make a new git tree beside it") from e
    return dict(files)


def write(root: Path, writes: Iterable[Write]) -> None:
    """Carry out the writes below `root`, each file whole; folders that become empty go.

    Raises:
        ForkError: a file cannot be written.
    """
    for each in writes:
        target = root / each.path
        try:
            if each.data is None:
                target.unlink(missing_ok=True)
                _prune(root, target.parent)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            try:
                if each.mode == SYMLINK:
                    temporary.symlink_to(os.fsdecode(each.data))
                else:
                    temporary.write_bytes(each.data)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as e:
            raise ForkError(
                f"{target} cannot be written", found=e.strerror or str(e), expected="a clone that this user may write",
                fix="mend that, then export again",
            ) from e  # fmt: skip


def _prune(root: Path, folder: Path) -> None:
    while folder not in (root, *root.parents) and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
