"""Real upstream files that decide the runner, and interpreters with packages of the tests' own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kunlunfork.lock import Lock
from kunlunfork.store import Base, Store

_WANTED = ("vllm/config/", "vllm/model_executor/models/", "vllm/transformers_utils/model_arch_config_convertor.py")


@pytest.fixture(scope="session")
def vllm_source(store: Store, base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What doctor reads of the real release, to choose a runner."""
    root = tmp_path_factory.mktemp("source")
    entries = {p: e for p, e in store.entries(base.tree).items() if os.fsdecode(p).startswith(_WANTED)}
    for path, (_, data) in store.read(entries).items():
        full = root / os.fsdecode(path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data)
    return root


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Gives every child of this test a module: `packages("torch.py", source)`."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))

    def write(name: str, text: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.fixture
def this_python() -> Path:
    return Path(sys.executable)


@pytest.fixture
def a_lock() -> Lock:
    return Lock("0.25.1", "0" * 40, "sdist", "0.25.1", "0" * 64, "0" * 64, (), {}, ())
