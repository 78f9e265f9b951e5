"""What tests share: small real trees, their digest, and the tool's main calls."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import paths, status, target
from kunlunfork.apply import Outcome, apply_in_place, revert
from kunlunfork.content import Content
from kunlunfork.progress import Silent
from kunlunfork.store import Store

REPO = Path(__file__).resolve().parents[1]
VERSION = "0.25.1"


@dataclass(frozen=True)
class Upstream:
    """Upstream's files, by path."""

    files: dict[bytes, tuple[paths.Entry, bytes]]

    def write(self, root: Path) -> Path:
        for path, (entry, data) in self.files.items():
            full = paths.on_disk(root, path)
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_bytes(data)
            full.chmod(0o755 if entry.mode == paths.EXECUTABLE else 0o644)
        return root


def digest(root: Path) -> dict[str, tuple[int, str]]:
    """Everything below a folder: mode and blob of each file, and the folders; bytecode left out."""
    found = {}
    for full in sorted(root.rglob("*")):
        name = full.relative_to(root).as_posix()
        if "__pycache__" in name:
            continue
        if full.is_symlink():
            found[name] = (0, os.fspath(full.readlink()))
        elif full.is_dir():
            found[name] = (0, "folder")
        else:
            found[name] = (full.stat().st_mode & 0o7777, paths.blob_id(full.read_bytes()))
    return found


def apply(content: Content, tree: Path, store: Store, *, wanted: str | None = None, dry_run: bool = False) -> Outcome:
    return apply_in_place(content, target.of_tree(tree), store, wanted=wanted, dry_run=dry_run, progress=Silent())


def undo(tree: Path, *, dry_run: bool = False) -> Outcome:
    return revert(target.of_tree(tree), dry_run=dry_run, progress=Silent())


def state(tree: Path, content: Content) -> status.Status:
    return status.read(target.of_tree(tree), content)


def follow(fix: str | None, scratch: Path, content: Content) -> None:
    """Paste a fix into a shell, as a user would."""
    assert fix is not None
    folder = scratch / "bin"
    folder.mkdir(exist_ok=True)
    exe = folder / "kunlunfork"
    exe.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kunlunfork "$@"\n')
    exe.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "KUNLUNFORK_REPO": str(content.root)}
    done = subprocess.run(["sh", "-euc", fix], capture_output=True, text=True, env=env, cwd=scratch, check=False)
    assert done.returncode == 0, (fix, done.stdout + done.stderr)
