"""Where the fork itself lies: the clone one stands in, `--repo DIR`, or the copy inside the installed package."""

from __future__ import annotations

import os
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
        found = [p.parent.name for p in self.patches.glob("*/pin.toml")]
        return tuple(sorted(found, key=Version))

    def pin(self, version: str) -> Pin:
        """The pin of a release; a local label (`0.25.1+cpu`) is ignored.

        Raises:
            ForkError: no such pin; names the nearest ones and the command that would make one.
        """
        wanted = pins.parse_version(version)
        known = self.versions()
        for name in known:
            if Version(name).public == wanted.public:
                return pins.load(self.patches / name / "pin.toml")
        if not known:
            raise ForkError(f"{self.patches} holds no pin", expected="patches/<version>/pin.toml")
        older = [v for v in known if Version(v) < wanted]
        newer = [v for v in known if Version(v) > wanted]
        near = older[-1:] + newer[:1]
        base = older[-1] if older else newer[0]
        raise ForkError(
            f"the fork has no pin for vLLM {wanted.public}",
            found=f"pins: {', '.join(known)}",
            expected=f"one of them; nearest: {' and '.join(near)}",
            fix=f"kunlunfork apply --vllm {near[0]}, or make one:"
            f" kunlunfork rebase --onto {wanted.public} --from {base}",
        )


def _is_clone(folder: Path) -> bool:
    return (folder / "scripts" / "kunlunfork" / "content.py").is_file() and (folder / "patches").is_dir()


def find(repo: Path | None = None) -> Content:
    """The fork's content: `repo`, else $KUNLUNFORK_REPO, else the clone around the current folder, else the package's.

    Raises:
        ForkError: `repo` or $KUNLUNFORK_REPO holds no fork, or the package was built without its content.
    """
    given = repo or (Path(os.environ[ENV]) if os.environ.get(ENV) else None)
    if given is not None:
        if not (given / "patches").is_dir() or not (given / "overlay").is_dir():
            raise ForkError(
                f"{given} is not a clone of kunlunfork",
                expected="a folder with patches/ and overlay/",
                fix="name the clone: --repo DIR" if repo else f"unset {ENV}",
            )
        return Content(given.resolve(), clone=True)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if _is_clone(folder):
            return Content(folder, clone=True)
    package = Path(__file__).resolve().parent
    if (package / "_content" / "patches").is_dir():
        return Content(package / "_content", clone=False)
    if _is_clone(package.parents[1]):  # an editable install
        return Content(package.parents[1], clone=True)
    raise ForkError(
        "this installation of kunlunfork has no patches and no overlay",
        expected=f"them inside {package}",
        fix="install it again: pip install --force-reinstall kunlunfork",
    )
