from __future__ import annotations

from pathlib import Path

import pytest
import rebasekit
from rebasekit import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return rebasekit.world(tmp_path, monkeypatch)
