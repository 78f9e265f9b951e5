"""Where the fork itself lies: the clone one stands in, `--repo DIR`, or the copy inside the installed package."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from kunlunfork import pins
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin

ENV = "KUNLUNFORK_REPO"


@dataclass(frozen=True)
class Content:
    """The folders of one version of the fork. `clone` says whether it may be edited."""

    root: Path
    clone: bool

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def overlay(self) -> Path:
        return self.root / "overlay"

    @property
    def parity(self) -> Path:
        """The tests that run inside a fork tree."""
        return self.root / "tests" / "parity"

    def versions(self) -> tuple[str, ...]:
        """The pins, oldest first."""
        return tuple(v for v in pins.version_folders(self.patches) if pins.is_there(self.patches / v / "pin.toml"))

    def newest(self) -> str:
        """The version of the newest pin (raises `ForkError` where there is none)."""
        known = self.versions()
        if not known:
            raise self._no_pin()
        return known[-1]

    def _no_pin(self) -> ForkError:
        return ForkError(
            f"{self.patches} holds no pin", expected="patches/<version>/pin.toml", fix="restore it from git"
        )

    def pin(self, version: str) -> Pin:
        """The pin of a release; a local label (`0.25.1+cpu`) is ignored.

        Raises:
            ForkError: no such pin; names the nearest ones and the command that would make one.
        """
        wanted = pins.parse_version(version)
        public = Version(wanted.public)
        known = self.versions()
        for name in known:
            # Not their texts: 0.25.1.0 is 0.25.1.
            if Version(name) == public:
                return pins.load(self.patches / name / "pin.toml")
        if not known:
            raise self._no_pin()
        older = [v for v in known if Version(v) < public]
        newer = [v for v in known if Version(v) > public]
        near = older[-1:] + newer[:1]
        raise ForkError(
            f"the fork has no pin for vLLM {public}",
            found=f"pins: {', '.join(known)}",
            expected=f"one of them; nearest: {' and '.join(near)}",
            fix=f"take a release that has one: kunlunfork apply --vllm {near[0]}",
        )


# Everything of a clone that a verb reads, or runs.
_READ = ("patches", "overlay", "ci", "tests/parity", "scripts/kunlunfork/content.py")
_PACKAGE = Path(__file__).resolve().parent
_CLONE = _PACKAGE.parents[1]


def _is_clone(folder: Path) -> bool:
    # A tree of vLLM is what gets patched, whatever else lies in it: it never brings the patches.
    return (
        os.path.isfile(folder / "scripts" / "kunlunfork" / "content.py")  # noqa: PTH113  (these never raise)
        and os.path.isdir(folder / "patches")  # noqa: PTH112
        and not os.path.isfile(folder / "vllm" / "__init__.py")  # noqa: PTH113
    )


def _check_owner(root: Path) -> None:
    """Refuse a clone that was come upon, not named, and that another user could have put there (as git does).

    Raises:
        ForkError: its root, or something that would be read, belongs neither to this user nor to root.
    """
    user = os.geteuid()
    owners = {user, 0}
    sudo = os.environ.get("SUDO_UID", "")
    if user == 0 and sudo.isascii() and sudo.isdigit():
        owners.add(int(sudo))
    run = root.glob("overlay/*/vllm/v1/worker/gpu/kunlun/switches.py")
    for path in (root, *(root / name for name in _READ), *run):
        try:
            found = {path.lstat().st_uid, path.stat().st_uid}
        except FileNotFoundError:
            continue
        except OSError as e:
            raise ForkError(f"{path} cannot be read", found=e.strerror or str(e)) from e
        if found - owners:
            raise ForkError(
                f"{root} is a clone of kunlunfork that belongs to someone else",
                found=f"{path} belongs to user {min(found - owners)}",
                expected=f"user {user} or root",
                fix=f"if you trust it, name it: --repo {shlex.quote(str(root))}",
            )


def is_installed(content: Content) -> bool:
    """Whether this is the content of the running package itself, not another one that was found or named."""
    return content.root in (_PACKAGE / "_content", _CLONE)


def _around() -> Path | None:
    """The clone around the current folder."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if _is_clone(folder)), None)


def is_chosen(repo: Path | None) -> bool:
    """Whether the user says which fork is meant, by an option, a variable or where they stand."""
    return repo is not None or bool(os.environ.get(ENV)) or _around() is not None


def find(repo: Path | None = None) -> Content:
    """The fork's content: `repo`, else $KUNLUNFORK_REPO, else the clone around the current folder, else the package's.

    Raises:
        ForkError: `repo` or $KUNLUNFORK_REPO holds no fork, the clone around is another user's, or the package was
            built without its content.
    """
    given = repo or (Path(os.environ[ENV]) if os.environ.get(ENV) else None)
    if given is not None:
        missing = [n for n in ("patches", "overlay") if not os.path.isdir(given / n)]  # noqa: PTH112
        if missing:
            raise ForkError(
                f"{given} is not a clone of kunlunfork",
                found=f"no folder {' and no folder '.join(missing)} that can be read",
                expected="a folder with patches/ and overlay/",
                fix="name the clone: --repo DIR" if repo else f"unset {ENV}",
            )
        return Content(given.resolve(), clone=True)
    around = _around()
    if around is not None:
        if around != _CLONE:
            _check_owner(around)
        return Content(around, clone=True)
    if (_PACKAGE / "_content" / "patches").is_dir():
        return Content(_PACKAGE / "_content", clone=False)
    if _is_clone(_CLONE):  # an editable install
        return Content(_CLONE, clone=True)
    raise ForkError(
        "this installation of kunlunfork has no patches and no overlay",
        expected=f"them inside {_PACKAGE}",
        fix="install it again: pip install --force-reinstall kunlunfork",
    )
