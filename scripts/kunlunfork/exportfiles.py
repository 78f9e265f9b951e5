"""The clone's files that a git tree was made from, and those that an export writes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork import git, paths, series, steps
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.paths import SYMLINK

# In the state folder of a git tree: the clone's files as apply or the last export left them.
MADE_FROM = "made-from.json"
Files = Mapping[str, str]
# Below the root of a clone, which git ignores: what an export is about to move to its place.
_STAGE, _PREFIX = ".kunlunfork", "export-"
# Of each file so many earlier states are known again.
_MOST = 32


@dataclass(frozen=True)
class MadeFrom:
    """Files of the clone by path, each with its blob id; for a series, the id of its names (see `names_id`).

    `earlier`: what else a file was when apply or an export had to do with it, oldest first; "" means not there. Such a
    file holds nothing that the tree does not know: someone went back to it, or an export was killed.
    """

    files: Files
    earlier: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def knows(self, name: str, blob: str | None) -> bool:
        return blob == self.files.get(name) or (blob or "") in self.earlier.get(name, ())

    def noting(self, states: Mapping[str, str]) -> MadeFrom:
        """The same, with more that files of the clone may be ("" for not there)."""
        earlier = dict(self.earlier)
        for name, state in states.items():
            earlier[name] = (*(known for known in earlier.get(name, ()) if known != state), state)[-_MOST:]
        return MadeFrom(self.files, earlier)

    def after(self, files: Files) -> MadeFrom:
        """The same when the clone has these files; those until now become earlier ones."""
        changed = (name for name in {*self.files, *files} if self.files.get(name) != files.get(name))
        return MadeFrom(dict(files), self.noting({name: self.files.get(name, "") for name in changed}).earlier)


@dataclass(frozen=True)
class Write:
    """A file of the clone to be written, or deleted where `data` is None; `mode` is SYMLINK for a link."""

    path: Path
    data: bytes | None
    mode: int | None

    @property
    def blob(self) -> str | None:
        return None if self.data is None else paths.blob_id(self.data)

    @property
    def name(self) -> str:
        return paths.to_text(paths.from_disk(self.path))

    @property
    def known_as(self) -> str | None:
        """What `MadeFrom` has for it."""
        is_series = self.data is not None and self.path.name == series.SERIES
        return names_id(_names(self.data or b"")) if is_series else self.blob

    def found(self, root: Path) -> str | None:
        """The same of what lies at its place now."""
        if self.path.name != series.SERIES:
            return blob_at(root / self.path)
        entry = paths.read_entry(root, paths.from_disk(self.path))
        return None if entry is None else names_id(_names(entry[1]))


def blob_at(path: Path) -> str | None:
    """The blob id of what lies there, None for nothing; a folder is none, its files are."""
    if path.is_dir() and not path.is_symlink():
        return None
    found = paths.read_entry(path.parent, os.fsencode(path.name))
    return None if found is None else found[0].blob


def _names(raw: bytes) -> list[str]:
    lines = (line.strip() for line in raw.decode("utf-8", "surrogateescape").split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def names_id(names: Iterable[str]) -> str:
    """What stands for a series: the names in their order, whatever comments are around them."""
    return paths.blob_id("\n".join(names).encode("utf-8", "surrogateescape"))


def made_from(fork: Fork) -> dict[str, str]:
    """The files of the clone that a fork consists of, relative to the clone, each with its blob id."""
    folder = f"patches/{fork.pin.version}"
    found = {f"{folder}/{p.name}": paths.blob_id(p.raw) for p in fork.patches}
    found[f"{folder}/{series.SERIES}"] = names_id(p.name for p in fork.patches)
    for path, file in fork.overlay.files.items():
        found[f"overlay/{file.layer}/{paths.to_text(path)}"] = file.entry.blob
    return found


def save(
    state: Path, files: Files, clone: Path | None, *, earlier: Mapping[str, Sequence[str]] | None = None
) -> None:  # fmt: skip
    """Write down the files and the clone that they lie in (None for the content inside the package)."""
    body = {
        "schema": 1, "clone": None if clone is None else str(clone.absolute()), "files": dict(files),
        "earlier": {name: list(blobs) for name, blobs in (earlier or {}).items()},
    }  # fmt: skip
    temporary = state / f"{MADE_FROM}.new"
    temporary.write_text(json.dumps(body, indent=0, sort_keys=True), encoding="utf-8")
    temporary.replace(state / MADE_FROM)


def clone(state: Path) -> Path | None:
    """The clone that the tree was made from, where it is still there."""
    try:
        known = _read(state).get("clone")
    except (OSError, ForkError, ValueError, AttributeError, RecursionError):
        return None
    return Path(known) if isinstance(known, str) and (Path(known) / "patches").is_dir() else None


def load(state: Path) -> MadeFrom:
    """What `save` wrote (raises `ForkError`)."""
    file = state / MADE_FROM
    try:
        raw = _read(state)
        files, earlier = raw["files"], raw.get("earlier", {})
        texts = [x for pair in files.items() for x in pair]
        texts += [x for name, blobs in earlier.items() for x in (name, *blobs)]
        if raw["schema"] != 1 or not all(isinstance(x, str) for x in texts):
            raise ValueError("another schema")
    except FileNotFoundError as e:
        raise ForkError(
            f"{state.parent.parent} does not say what it was made from", found=f"no {file}",
            expected="a tree that kunlunfork apply --git made: a clone of one has no record of the patches",
            fix="fetch your commits into the tree that apply made, and export there",
        ) from e  # fmt: skip
    except ForkError as e:
        raise ForkError(e.message, found=e.found, expected=e.expected, fix=_ANEW) from e
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ForkError(f"{file} cannot be read", found=str(e), fix=_ANEW) from e
    return MadeFrom(dict(files), {name: tuple(blobs) for name, blobs in earlier.items()})


_ANEW = "make a new git tree beside it, and git cherry-pick your commits"


def _read(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(paths.read_plain(state / MADE_FROM))
    return found


def write(root: Path, writes: Iterable[Write]) -> None:
    """Carry out the writes below `root`: all or none of them; folders that become empty go.

    Everything is written beside its place first. What a killed process left half done is taken up by the next call
    with the same writes, its files by any next call. In between, what a series names is there.

    Raises:
        ForkError: a file cannot be written; then all is as before.
    """
    ordered = in_order(writes)
    done: list[tuple[Path, tuple[paths.Entry, bytes] | None]] = []
    at = root / _STAGE
    try:
        stage = _make_stage(root)
        for number, each in enumerate(ordered):
            at = stage / str(number)
            _put(at, each.data, each.mode)
        try:
            for number, each in enumerate(ordered):
                at = root / each.path
                done.append((at, paths.read_entry(root, paths.from_disk(each.path))))
                _move(root, each, stage / str(number))
                steps.checkpoint("exported")
        except BaseException:
            _undo(root, stage, done)
            raise
    except OSError as e:
        raise ForkError(
            f"{at} cannot be written", found=e.strerror or str(e), expected="a clone that this user may write",
            fix="mend that, then export again",
        ) from e  # fmt: skip
    finally:
        sweep(root)


def ignored(root: Path, writes: Iterable[Write]) -> list[str]:
    """Which of the files to be written the clone's own .gitignore hides from `git status` and `git add`."""
    names = [paths.from_disk(each.path) for each in writes if each.data is not None]
    if not names or not (root / ".git").exists():
        return []
    try:
        found = git.run(["check-ignore", "-z", "--stdin"], cwd=root, stdin=b"".join(name + b"\0" for name in names))
    except git.GitFailed:
        return []  # 1: none
    return [paths.show(name) for name in found.split(b"\0")[:-1]]


def in_order(writes: Iterable[Write]) -> list[Write]:
    """New files before the series that names them, deletions last, but for what is in the way of a new file."""
    every = list(writes)
    new = {each.path for each in every if each.data is not None}
    above = {folder for path in new for folder in path.parents}

    def rank(each: Write) -> int:
        if each.data is None:
            return 0 if each.path in above or new.intersection(each.path.parents) else 3
        return 2 if each.path.name == series.SERIES else 1

    return sorted(every, key=rank)


def _make_stage(root: Path) -> Path:
    sweep(root)
    stage = root / _STAGE / f"{_PREFIX}{secrets.token_hex(4)}"
    stage.mkdir(parents=True)
    return stage


def sweep(root: Path) -> None:
    """Delete what this and killed exports staged."""
    for left in (root / _STAGE).glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):
        (root / _STAGE).rmdir()


def _put(file: Path, data: bytes | None, mode: int | None) -> None:
    if data is not None and mode == SYMLINK:
        file.symlink_to(os.fsdecode(data))
    elif data is not None:
        with file.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if mode == paths.EXECUTABLE:
            file.chmod(0o755)


def _move(root: Path, each: Write, staged: Path) -> None:
    target = root / each.path
    if each.data is None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        _prune(root, target.parent)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(target)


def _undo(root: Path, stage: Path, done: Sequence[tuple[Path, tuple[paths.Entry, bytes] | None]]) -> None:
    for target, had in reversed(done):
        with contextlib.suppress(OSError):
            if had is None:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    target.unlink()
                _prune(root, target.parent)
                continue
            back = stage / "back"
            _put(back, had[1], had[0].mode)
            target.parent.mkdir(parents=True, exist_ok=True)
            back.replace(target)


def _prune(root: Path, folder: Path) -> None:
    # A clone is told by these two.
    stop = (root, root / "overlay", root / "patches", *root.parents)
    while folder not in stop and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
