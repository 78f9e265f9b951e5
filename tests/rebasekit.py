"""Small releases in a store, a clone with a series of patches for the first of them, and a rebase of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import patchkit
import pytest
from support import digest

from kunlunfork import paths, pins
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.pins import Pin
from kunlunfork.progress import Silent
from kunlunfork.rebase.driver import Driver
from kunlunfork.rebase.outcome import Outcome
from kunlunfork.rebase.report import Report, Request
from kunlunfork.rebase.session import Session
from kunlunfork.sources import pypi
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store

Files = Mapping[bytes, bytes | tuple[int, bytes]]
HEAD = (
    b"From: A U Thor <a@example.org>\nDate: Mon, 30 Nov 2026 14:00:00 +0000\nSubject: %s\n"
    b"Upstream-Status: Pending\nRemove-When: never\n\nWhy.\n---\n"
)
ALWAYS: dict[bytes, bytes] = {
    b"vllm/__init__.py": b"",
    b"vllm/_version.py": b"__commit_id__ = commit_id = 'g0123456789'\n",
    b"pyproject.toml": (
        b'[build-system]\nrequires = ["torch == 2.11.0"]\n[project]\nrequires-python = ">=3.10, <3.15"\n'
    ),
}


def lines(*names: str, count: int = 6) -> bytes:
    """Python with these functions, each of `count` lines that no other has."""
    parts = [f"def {n}(x):\n" + "".join(f"    {n}_{i} = x + {i}\n" for i in range(count)) + "\n\n" for n in names]
    return "".join(parts).encode()


@dataclass
class World:
    """Releases 1.0, 1.1 ... and a clone whose series is for 1.0."""

    folder: Path
    store: Store
    clone: Content
    pair: patchkit.Pair
    bases: dict[str, Base] = field(default_factory=dict)
    now: dict[bytes, bytes | tuple[int, bytes]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def patches(self) -> Path:
        return self.clone.patches / "1.0"

    @property
    def session(self) -> Session:
        return Session(self.clone.root)

    @property
    def driver(self) -> Driver:
        settings = Settings(Cache(self.folder / "cache"), None, False, Silent())
        return Driver(self.clone, self.store, settings)

    def release(self, version: str, files: Files) -> None:
        """Put a release into the store; the first one is what the series is for."""
        every = {**ALWAYS, **files}
        members = [(p, *patchkit.mode_and_data(value)) for p, value in sorted(every.items())]
        origin = sha256(version.encode()).hexdigest()
        base = self.store.import_members("sdist", version, origin, members)
        self.bases[version] = base
        if not self.now:
            self.now = dict(every)
            self.patches.mkdir(parents=True)
            sdist = (f"vllm-{version}.tar.gz", origin, 1)
            pin = Pin(version, f"v{version}", "0" * 40, *sdist, "2026-01-01", "2.0", ">=3.10", False)
            (self.patches / "pin.toml").write_bytes(pins.dump(pin))
            (self.patches / "series").write_bytes(b"# a comment\n")

    def patch(self, name: str, edits: Mapping[bytes, bytes | tuple[int, bytes] | None], *options: str) -> bytes:
        """Add a patch that makes these files of what the patches before it leave (None: it deletes)."""
        after = {p: v for p, v in {**self.now, **edits}.items() if v is not None}
        self.pair.load(self.now, after)
        raw = HEAD % name.encode() + self.pair.diff(*(options or ("--find-renames",)))
        self.now = after
        self.add(f"{name}.patch", raw)
        return raw

    def add(self, name: str, raw: bytes) -> None:
        (self.patches / name).write_bytes(raw)
        self.names.append(name)
        with (self.patches / "series").open("ab") as file:
            file.write(f"{name}\n".encode())

    def look(self, onto: str = "1.1", **options: Any) -> Report:
        return self.driver.look(Request(onto, **options))

    def one(self, onto: str = "1.1", **options: Any) -> Outcome:
        """The outcome of the only patch on the only step."""
        [found] = self.look(onto, **options).run.outcomes
        return found

    def begin(self, onto: str = "1.1", **options: Any) -> Report:
        return self.driver.begin(self.session, Request(onto, **options))

    def rebased(self, version: str = "1.1") -> dict[bytes, tuple[int, bytes]]:
        """The files of the fork of a pin, as `apply` makes them; only those that its patches touch."""
        from kunlunfork import fork

        built = fork.load(self.clone, version)
        base = self.store.entries(self.bases[version].tree)
        have = self.store.read({p: e for p, e in base.items() if p in built.patched})
        made = fork.build(replace(built), {p: have.get(p) for p in built.touched})
        return {p: (v[0].mode, v[1]) for p, v in made.items() if v is not None and p in built.patched}

    def digest(self) -> dict[str, tuple[int, str]]:
        return digest(self.clone.root)

    def work(self, path: bytes) -> Path:
        return paths.on_disk(self.session.work, path)

    def git(self, *args: str) -> str:
        """Git in the work tree of a conflict, as a user has it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        env |= {"HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *args], cwd=self.session.work, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout


def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    clone = Content(folder / "clone", clone=True)
    for name in ("patches", "overlay"):
        (clone.root / name).mkdir(parents=True)
    (folder / "pair").mkdir()
    made = World(folder, Store(folder / "cache" / "store.git"), clone, patchkit.Pair(folder / "pair"))

    def packages(project: str, **_: object) -> tuple[SimpleNamespace, ...]:
        """What the index would list."""
        kind = "sdist" if project == "vllm" else "wheel"
        return tuple(
            SimpleNamespace(
                package_type=kind, version=base.version, filename=f"vllm-{base.version}.tar.gz",
                digests={"sha256": base.origin}, size=7, is_yanked=False,
                upload_time=datetime(2026, 7, 14, tzinfo=timezone.utc),
            )
            for base in made.bases.values()
        )  # fmt: skip

    monkeypatch.setattr(pypi, "packages", packages)
    return made
