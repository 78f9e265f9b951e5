"""Upstream's own tests of a release, and what they need: which files, their tools, the folder that they run in."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork import paths
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.journal import fresh_perm, write_file
from kunlunfork.matrix.environment import Engine, clean_environ
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.progress import Progress
from kunlunfork.store import Base, Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEPT = (b"tests/", b"pyproject.toml")


@dataclass(frozen=True)
class Tests:
    """`files`: of the release, relative to it. `tools`: what they import beside the engine environment."""

    files: tuple[str, ...]
    tools: tuple[str, ...]


def load(content: Content, version: str, device: str) -> Tests:
    """What `ci/matrix.toml` says of a pin's tests on a device (raises `ForkError` where it says nothing)."""
    path = content.root / "ci" / "matrix.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("upstream", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ForkError(f"{path} cannot be read", found=str(e), fix="restore it from git") from e
    for table in tables:
        if version in table.get("vllm", ()) and table.get("device") == device:
            return Tests(_strings(path, table, "tests"), _strings(path, table, "tools"))
    raise ForkError(
        f"no tests of upstream's are named for vLLM {version} on {device}", expected=f"an [[upstream]] in {path}"
    )


def _strings(path: Path, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = table.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ForkError(f"{path} has an [[upstream]] that is not valid", found=f"{name}: {value!r}"[:200],
                        expected="a list of strings")  # fmt: skip
    return tuple(value)


def folder(engine: Engine, store: Store, base: Base) -> Path:
    """Upstream's `tests` without its `vllm`, which must come from the tree that is tested; made once a release."""
    place = engine.root / f"upstream-tests-{base.tree[:12]}"
    if place.is_dir():
        return place
    temporary = place.with_name(f"{place.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    wanted: dict[bytes, Entry] = {
        path: entry
        for path, entry in store.entries(base.tree).items()
        if path.startswith(_KEPT) and entry.mode != SYMLINK
    }
    for path, (entry, data) in store.read(wanted).items():
        full = paths.on_disk(temporary, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        write_file(full, data, entry.mode, fresh_perm(entry.mode))
    temporary.rename(place)
    return place


def tools(engine: Engine, tests: Tests, progress: Progress) -> Path:
    """A folder with the tools, to be put on PYTHONPATH; made once (raises `ForkError` where pip fails)."""
    key = hashlib.sha256("\n".join(tests.tools).encode()).hexdigest()[:10]
    place = engine.root / f"upstream-tools-{key}"
    if place.is_dir():
        return place
    temporary = place.with_name(f"{place.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    command = [
        str(engine.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps",
        "--target", str(temporary), *tests.tools,
    ]  # fmt: skip
    with progress.task(f"installing {len(tests.tools)} tools of upstream's tests", None):
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=clean_environ(), check=False
        )
    if child.returncode:
        raise ForkError(
            "the tools of upstream's tests cannot be installed", details=child.stderr.strip().splitlines()[-8:],
            found=f"exit code {child.returncode}",
            fix="mend what it says (pip's index, disk, network), then run the command again",
        )  # fmt: skip
    temporary.rename(place)
    return place
