"""A diff of small releases, and the real pins' text applied by git to real upstream files."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rebasekit import World
from support import REPO

from kunlunfork import git, paths
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff import report as reports
from kunlunfork.diff import show, sides
from kunlunfork.diff.report import Parts, Report
from kunlunfork.diff.sides import Request
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store

OVERLAY = Path("vllm/v1/worker/gpu/kunlun")


@dataclass
class Differ:
    """`kunlunfork diff` on the releases and the clone of a `World`."""

    world: World

    def __post_init__(self) -> None:
        shutil.copy2(REPO / "patches" / "areas.toml", self.world.clone.patches)
        self.ship("__init__.py", b"# overlay\n")

    def ship(self, name: str, data: bytes) -> None:
        """A file of the overlay."""
        file = self.world.clone.overlay / "1.0" / OVERLAY / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def report(
        self,
        *words: str,
        context: int = 3,
        symbols: bool = False,
        interfaces: bool = False,
        contents: bool = False,
        **options: object,
    ) -> Report:
        request = Request(words, **options)  # type: ignore[arg-type]
        parts = Parts(context, symbols, interfaces, contents)
        return report(self.world.clone, self.world.store, Cache(self.world.folder / "cache"), request, parts)

    def text(
        self, *words: str, form: str = "term", stat: bool = False, symbols: bool = False, **options: object
    ) -> bytes:
        """What is written into a file."""
        found = self.report(*words, symbols=symbols, contents=form == "html", **options)  # type: ignore[arg-type]
        return show.render(
            found, show.Options(form, stat, symbols, bool(options.get("interfaces")), None, "never", False)
        )

    def folder(self, name: str, version: str = "1.0") -> Path:
        """A release, unpacked."""
        root = self.world.folder / name
        entries = self.world.store.entries(self.world.bases[version].tree)
        unpack(root, self.world.store.read(entries))
        return root


def report(content: Content, store: Store, cache: Cache, request: Request, parts: Parts | None = None) -> Report:
    with sides.opened(content, store, Settings(cache, None, True, Silent()), request) as opened:
        return reports.make(opened, cache, parts)


def unpack(root: Path, files: dict[bytes, tuple[paths.Entry, bytes]]) -> None:
    root.mkdir()
    for path, (entry, data) in files.items():
        full = paths.on_disk(root, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == paths.SYMLINK:
            full.symlink_to(data.decode())
        else:
            full.write_bytes(data)
            full.chmod(0o755 if entry.mode == paths.EXECUTABLE else 0o644)


def git_apply(root: Path, patch: bytes) -> None:
    """As a user does it, in a folder that is no repository; white space errors are errors."""
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], cwd=root, input=patch, env=git.environment(),
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
