"""What a measurement depends on, for the report: the machine, its load, the programs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import git
from kunlunfork.git import GitFailed


@dataclass(frozen=True)
class Machine:
    """`cores` are those that this process may use; `load` the mean number of running processes of the last minute."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    file_system: str
    python: str
    git: str
    quilt: str | None
    load: float


def look(folder: Path) -> Machine:
    """The machine as it is now, and the file system that `folder` lies on."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        file_system=_file_system(folder),
        python=platform.python_version(),
        git=git.run(["version"]).decode().strip().removeprefix("git version "),
        quilt=_quilt(),
        load=load(),
    )


def load() -> float:
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(errors="replace").splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    """The type of the innermost mount around a folder, as Linux tells it."""
    mounts = Path("/proc/self/mounts")
    found = (0, "unknown")
    for line in mounts.read_text(errors="replace").splitlines() if mounts.is_file() else ():
        _, place, kind, *_ = line.split(" ")
        # Octal escapes in a mount's name stay as they are: such a mount is then taken for the one around it.
        if folder.resolve().is_relative_to(place) and len(place) >= found[0]:
            found = (len(place), kind)
    return found[1]


def _quilt() -> str | None:
    if shutil.which("quilt") is None:
        return None
    done = subprocess.run(["quilt", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def clone_commit(root: Path) -> str | None:
    """The commit of the clone at `root`, with `+` where files differ from it; None where that is not known."""
    if not (root / ".git").exists():
        return None
    try:
        commit = git.run(["-C", root, "rev-parse", "HEAD"]).decode().strip()
        return commit + ("+" if git.run(["-C", root, "status", "--porcelain"]) else "")
    except GitFailed:  # a repository of another user, or without a commit
        return None
