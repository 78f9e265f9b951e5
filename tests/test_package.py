"""What is packed: the same files from a clean clone and from one that tools have worked in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support import REPO

from kunlunfork import git

pytest.importorskip("hatchling")

FOLDERS = ("scripts/kunlunfork", "patches", "overlay", "ci", "tests/parity")
PLACES = {"scripts/kunlunfork": "kunlunfork", **{f: f"kunlunfork/_content/{f}" for f in FOLDERS[1:]}}


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of the repository, also those that are not committed yet."""
    listed = git.run(["-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    return [name for name in listed.decode().split("\0") if name and (REPO / name).exists()]


def _clone(folder: Path, tracked: list[str]) -> Path:
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, folder / name, follow_symlinks=False)
    return folder


def _build(clone: Path, target: str) -> list[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(clone.parent / "out")]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = (clone.parent / "out").iterdir()
    if target == "wheel":
        with zipfile.ZipFile(built) as archive:
            return sorted(archive.namelist())
    with tarfile.open(built) as tar:
        return sorted(m.name for m in tar if m.isfile())


def _litter(clone: Path) -> None:
    for top in (*FOLDERS, "scripts", "tests"):
        for name in (".hypothesis/x", ".pytest_cache/v/x", ".ruff_cache/x", ".mypy_cache/x", "__pycache__/x.pyc",
                     ".x.py.swp", ".idea/x", ".DS_Store"):  # fmt: skip
            file = clone / top / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")


@pytest.mark.parametrize("versioned", [True, False])
def test_the_wheel_is_the_package_and_the_forks_content(versioned: bool, tmp_path: Path, tracked: list[str]) -> None:
    clone = _clone(tmp_path / "clone", tracked)
    if versioned:
        git.run(["init", "-q", clone])
    _litter(clone)
    found = [name for name in _build(clone, "wheel") if ".dist-info/" not in name]
    wanted = [
        place + name.removeprefix(top)
        for top, place in PLACES.items()
        for name in tracked
        if name.startswith(f"{top}/")
    ]
    assert found == sorted(wanted)


def test_the_sdist_has_no_litter(tmp_path: Path, tracked: list[str]) -> None:
    clone = _clone(tmp_path / "clone", tracked)
    _litter(clone)
    found = {name.partition("/")[2] for name in _build(clone, "sdist")}
    assert found - set(tracked) == {"PKG-INFO"}
    assert {name for name in tracked if name.startswith(tuple(f"{f}/" for f in FOLDERS))} <= found
