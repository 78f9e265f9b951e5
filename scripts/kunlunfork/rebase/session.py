"""A rebase under way: what was asked for and what was decided, as JSON. All else is computed anew by each command,
so that one that was killed loses nothing."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kunlunfork import paths, steps
from kunlunfork.errors import ForkError
from kunlunfork.filelocks import held
from kunlunfork.rebase.outcome import Conflict

SCHEMA = 1
_STATE, _BLOBS, _IGNORE = "state.json", "blobs", ".gitignore"
_FOLDER = Path(".kunlunfork") / "rebase"

Files = Mapping[str, "tuple[int, str] | None"]


@dataclass(frozen=True)
class Decision:
    """How a person settled one conflict of `patch` at `version`: `key` tells it, `files` are path -> (mode, blob), or
    None where the file goes."""

    key: str
    patch: str
    version: str
    path: str
    files: Files


@dataclass(frozen=True)
class Skip:
    patch: str
    version: str
    why: str


@dataclass(frozen=True)
class State:
    """What was asked for, and what was decided since.

    `series` is the folder of someone else's series, '' for that of the fork. `rungs` are (version, tree) from the
    release that the series is for to the last one. `writes` are the files that the end of the rebase writes, path ->
    blob, from the moment on at which it does. `made_root`: the folder of the result was made for it.
    """

    start: str
    onto: str
    series: str
    series_hash: str
    rungs: tuple[tuple[str, str], ...]
    renames: tuple[tuple[str, str], ...] = ()
    decisions: tuple[Decision, ...] = ()
    skips: tuple[Skip, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    made_root: bool = False

    def decided(self, *decisions: Decision) -> State:
        keys = {d.key for d in decisions}
        return replace(self, decisions=(*(d for d in self.decisions if d.key not in keys), *decisions))


def key_of(conflict: Conflict) -> str:
    """What tells a conflict: its path, class, and the three files with their modes."""
    entries = (conflict.old, conflict.new, conflict.ours)
    sides = ["absent" if e is None else f"{e.mode:o}-{e.blob}" for e in entries]
    return " ".join([conflict.kind, *sides, paths.to_text(conflict.path)])


class Session:
    """The folder of a rebase in a clone, or in the folder that its result goes to.

    Args:
        options: what names `root` on the command line, for advice.
    """

    def __init__(self, root: Path, options: str = "") -> None:
        self.root = root
        self._options = options
        self.folder = root / _FOLDER
        self.made_root = False

    def command(self, action: str) -> str:
        """The command line that goes on with this rebase."""
        return f"kunlunfork rebase --{action}{self._options}"

    @property
    def work(self) -> Path:
        """The work tree of a conflict."""
        return self.folder / "work"

    @property
    def text(self) -> Path:
        """What is said of the conflict."""
        return self.folder / "CONFLICT.txt"

    def is_there(self) -> bool:
        return (self.folder / _STATE).is_file()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one who works on this rebase; the folder is made, and goes again where no state was written."""
        for place in (self.folder.parent, self.folder):
            if place.is_symlink():
                raise ForkError(
                    f"{place} is a link, and files would be deleted elsewhere", found=f"-> {place.readlink()}",
                    expected="a folder, or nothing", fix=f"rm {shlex.quote(str(place))}",
                )  # fmt: skip
        try:
            self.made_root = not self.root.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            ignore = self.folder.parent / _IGNORE
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as e:
            raise ForkError(
                f"{self.folder} cannot be made",
                found=e.strerror or str(e),
                expected="a folder that this user may write",
            ) from e
        try:
            with held(self.folder / "lock"):
                self.folder.mkdir(parents=True, exist_ok=True)  # whoever had the lock may have taken it away
                yield
        except OSError as e:
            raise ForkError(
                f"{e.filename or self.folder} cannot be read or written", found=e.strerror or str(e),
                fix=f"mend that; the rebase is as it was: {self.command('status')}",
            ) from e  # fmt: skip
        finally:
            if not self.is_there():
                self.remove(root=self.made_root)

    def load(self) -> State:
        """The state (raises `ForkError` where no rebase is under way, or it cannot be read)."""
        file = self.folder / _STATE
        try:
            raw = json.loads(file.read_bytes())
            if raw["schema"] != SCHEMA:
                raise ValueError(f"schema {raw['schema']}, this kunlunfork knows {SCHEMA}")
            return _state(raw)
        except FileNotFoundError as e:
            raise ForkError(
                f"no rebase is under way in {self.root}", found=f"no {file}", fix="begin one: --onto, and a release"
            ) from e
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise ForkError(
                f"{file} cannot be read", found=str(e), expected="what this version of kunlunfork wrote",
                fix=f"begin again: {self.command('abort')}",
            ) from e  # fmt: skip

    def save(self, state: State) -> None:
        steps.checkpoint("rebase: save state")
        body = {"schema": SCHEMA, **asdict(state)}
        new = self.folder / f"{_STATE}.new"
        new.write_text(json.dumps(body, indent=1), encoding="utf-8")
        steps.checkpoint("rebase: name state")
        new.replace(self.folder / _STATE)
        steps.checkpoint("rebase: state saved")

    def keep(self, data: bytes) -> str:
        """Store the bytes of a decision."""
        blob = paths.blob_id(data)
        file = self.folder / _BLOBS / blob
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            new = file.with_name(f"new-{secrets.token_hex(4)}")
            new.write_bytes(data)
            new.replace(file)
        return blob

    def kept(self, blob: str) -> bytes:
        """The bytes of a decision (raises `ForkError` where they are gone)."""
        file = self.folder / _BLOBS / blob
        try:
            data = paths.read_plain(file)
        except OSError as e:
            raise ForkError(f"{file} cannot be read", found=e.strerror or str(e), fix=self.command("abort")) from e
        if paths.blob_id(data) != blob:
            raise ForkError(f"{file} was changed", expected=f"blob {blob}", fix=self.command("abort"))
        return data

    def remove(self, *, root: bool = False) -> None:
        """Take the folder away; the state goes first, so that a half-removed one is no rebase any more.

        Args:
            root: an empty folder of the result goes too.
        """
        steps.checkpoint("rebase: remove state")
        (self.folder / _STATE).unlink(missing_ok=True)
        steps.checkpoint("rebase: remove folder")
        shutil.rmtree(self.folder, ignore_errors=True)
        others = [p.name for p in self.folder.parent.iterdir()] if self.folder.parent.is_dir() else []
        if others == [_IGNORE]:
            (self.folder.parent / _IGNORE).unlink()
            self.folder.parent.rmdir()
        if root:
            with contextlib.suppress(OSError):  # where something is in it
                self.root.rmdir()


def _state(raw: dict[str, Any]) -> State:
    decisions = []
    for each in raw["decisions"]:
        files = {path: None if e is None else (int(e[0]), str(e[1])) for path, e in each["files"].items()}
        decisions.append(Decision(**{**each, "files": files}))
    return State(
        raw["start"], raw["onto"], raw["series"], raw["series_hash"],
        tuple((v, t) for v, t in raw["rungs"]), tuple((a, b) for a, b in raw["renames"]), tuple(decisions),
        tuple(Skip(**s) for s in raw["skips"]), dict(raw["writes"]), raw["made_root"],
    )  # fmt: skip
