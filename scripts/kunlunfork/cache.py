"""Folders of the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

ENV = "KUNLUNFORK_CACHE"


@dataclass(frozen=True)
class Cache:
    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store.git"

    @property
    def downloads(self) -> Path:
        return self.root / "downloads"


def default() -> Cache:
    """`$KUNLUNFORK_CACHE`, else the platform's cache folder for this program."""
    given = os.environ.get(ENV)
    return Cache(Path(given).absolute() if given else Path(platformdirs.user_cache_dir("kunlunfork")))
