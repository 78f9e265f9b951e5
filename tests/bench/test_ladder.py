from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rebase"))
import rebasekit
from rebasekit import World, lines

from kunlunfork import cli, errors

A, B = b"vllm/a.py", b"vllm/b.py"
BASE = lines("one", "two", "three", count=12)
SIX = b"two_6 = x + 6"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return rebasekit.world(tmp_path, monkeypatch)


def test_a_run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All three carry the same patches; the one that conflicts is left out by all."""
    monkeypatch.setenv("KUNLUNFORK_CACHE", str(world.folder / "cache"))
    world.release("1.0", {A: BASE, B: BASE})
    world.patch("bad", {A: BASE.replace(SIX, b"two_6 = x - 6")})
    world.patch("good", {B: BASE.replace(SIX, b"two_6 = x - 6")})
    world.release("1.1", {A: BASE.replace(SIX, b"two_6 = [x]"), B: b"import os\n" + BASE})
    world.release("1.2", {A: BASE.replace(SIX, b"two_6 = [x]"), B: b"import os, re\n" + BASE})
    work, out = world.folder / "work", world.folder / "out.json"
    work.mkdir()
    args = ["--repo", str(world.clone.root), "--dir", str(work), "--rounds", "1", "--offline", "--out", str(out)]
    assert cli.run(["bench", "ladder", "--onto", "1.2", *args]) == errors.OK
    said = capsys.readouterr().out
    assert "vLLM 1.0 -> 1.1 -> 1.2, 2 patches, 1 rounds" in said
    result = json.loads(out.read_bytes())
    assert result["carried"] == {"merges": ["good.patch"], "git rebase": ["good.patch"]}
    assert set(result["seconds"]) == {"merges", "kunlunfork rebase --dry-run", "git rebase"}
    assert all(0 < t["least"] <= t["median"] for t in result["seconds"].values())
    assert result["ratio_git_rebase_to_merges"] > 0
    assert list(work.iterdir()) == [], "nothing is left"
    assert not (world.clone.root / ".kunlunfork").exists()
