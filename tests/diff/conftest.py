from __future__ import annotations

from pathlib import Path

import pytest
import rebasekit
from diffkit import Differ


@pytest.fixture
def differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Differ:
    return Differ(rebasekit.world(tmp_path, monkeypatch))
