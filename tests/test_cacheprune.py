"""`cache prune` deletes what is kunlunfork's, all of it, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import VERSION, digest
from unprivileged import unprivileged

from kunlunfork import cachework, errors
from kunlunfork.cache import ENV, Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.paths import REGULAR
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings, release
from kunlunfork.store import Store

SDIST = f"vllm-{VERSION}.tar.gz"
ENGINE = "0.25.1-cpu-py3.11-0123456789"


@pytest.fixture
def own(content: Content, tmp_path: Path) -> Cache:
    """A cache with the release of the pin, and downloads."""
    cache = Cache(tmp_path / "cache")
    pin = content.pin(VERSION)
    Store(cache.store).import_members("sdist", VERSION, pin.sdist_sha256, [(b"vllm/a.py", REGULAR, b"a")])
    cache.downloads.mkdir()
    for name in (SDIST, "vllm-0.1.0.tar.gz.part", f".{SDIST}.import"):
        (cache.downloads / name).write_bytes(b"x")
    return cache


def _cli(cache: Cache, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kunlunfork", "cache", *args],
        env={**os.environ, ENV: str(cache.root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_downloads_stay_where_the_store_is_damaged(content: Content, own: Cache) -> None:
    """They are then the only copy."""
    for pack in (own.store / "objects/pack").glob("*.pack"):
        pack.unlink()
    with pytest.raises(ForkError, match="is damaged"):
        cachework.prune(content, own, everything=False, dry_run=False)
    assert (own.downloads / SDIST).is_file()


FOREIGN = ("thesis.tar.gz", "vllm.tar.gz", "notes.part", "vllm-fork/a.py", "other-0.25.1.tar.gz", "my.lock")


@pytest.mark.parametrize("everything", [False, True])
def test_files_of_others_stay(everything: bool, content: Content, own: Cache) -> None:
    for folder in (own.downloads, own.root, own.root / "engines", own.root / "results"):
        for name in FOREIGN:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
    (own.downloads / "vllm-0.3.0.tar.gz").symlink_to(own.root / "thesis.tar.gz")
    (own.downloads / "vllm-0.2.0.tar.gz").mkdir()
    for dry_run in (True, False):
        cachework.prune(content, own, everything=everything, dry_run=dry_run)
        cachework.listing(own)
        for folder in (own.downloads, own.root, own.root / "engines", own.root / "results"):
            assert [n for n in FOREIGN if not (folder / n).is_file()] == []
        assert (own.downloads / "vllm-0.3.0.tar.gz").is_symlink()
        assert (own.downloads / "vllm-0.2.0.tar.gz").is_dir()
    assert not (own.downloads / SDIST).exists()
    assert "thesis.tar.gz" in " ".join(cachework.strangers(own))


@pytest.mark.parametrize("everything", [False, True])
def test_what_a_link_leads_to_stays(everything: bool, content: Content, own: Cache, tmp_path: Path) -> None:
    shutil.move(own.downloads, tmp_path / "real")
    own.downloads.symlink_to(tmp_path / "real")
    before = digest(tmp_path / "real")
    names, _ = cachework.prune(content, own, everything=everything, dry_run=False)
    assert SDIST not in names
    assert digest(tmp_path / "real") == before
    assert "is a link" in cachework.strangers(own)[0]


@pytest.mark.parametrize("verb", [("ls",), ("prune",), ("prune", "--all")])
def test_a_store_of_someone_else_stays(verb: tuple[str, ...], own: Cache) -> None:
    shutil.rmtree(own.store)
    own.store.mkdir()
    (own.store / "HEAD").write_text("my repository")
    done = _cli(own, *verb)
    assert done.returncode == errors.USER
    assert "is not a store of kunlunfork" in done.stderr
    assert [p.name for p in own.store.iterdir()] == ["HEAD"]


def test_all_includes_the_engines_and_a_damaged_store(own: Cache) -> None:
    engine = own.root / "engines" / ENGINE
    (engine / "venv").mkdir(parents=True)
    (engine / "venv" / "x").write_bytes(b"x" * 1000)
    (own.root / "results").mkdir()
    (own.root / "results" / "0.25.1.jsonl").write_text("{}\n")
    listed = _cli(own, "ls").stdout
    assert ENGINE in listed
    assert "results" in listed
    (own.store / "HEAD").unlink()
    refused = _cli(own, "prune")
    assert refused.returncode == errors.USER
    assert "is damaged" in refused.stderr
    assert "kunlunfork cache prune --all" in refused.stderr
    assert _cli(own, "prune", "--all", "--dry-run").returncode == 0
    assert engine.exists()
    done = _cli(own, "prune", "--all")
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stdout
    assert not engine.exists()
    assert not own.store.exists()
    assert (own.root / "results" / "0.25.1.jsonl").is_file(), "measurements are nobody's to delete"


@pytest.mark.parametrize("everything", [False, True])
def test_a_cache_that_may_not_be_written(everything: bool, content: Content, own: Cache, tmp_path: Path) -> None:
    before = digest(own.root)
    (own.downloads / SDIST).with_name(f"{SDIST}.lock").write_text("")
    with unprivileged(tmp_path), pytest.raises(ForkError, match="cannot be"):
        cachework.prune(content, own, everything=everything, dry_run=False)
    assert {name: was for name, was in digest(own.root).items() if not name.endswith(".lock")} == {
        name: was for name, was in before.items() if not name.endswith(".lock")
    }


def test_a_read_only_cache_that_has_the_release_is_enough(content: Content, own: Cache, tmp_path: Path) -> None:
    subprocess.run(["chmod", "-R", "a-w,a+rX", own.root], check=True)
    with unprivileged(tmp_path):
        store = Store(own.store)
        base = release(content.pin(VERSION), store, Settings(own, None, True, Silent()))
        assert store.read(store.entries(base.tree))[b"vllm/a.py"][1] == b"a"
        assert len(cachework.listing(own).bases) == 1


def test_export_says_what_prune_took(content: Content, own: Cache, tmp_path: Path) -> None:
    cachework.prune(content, own, everything=False, dry_run=False)
    with pytest.raises(ForkError, match="not in the cache any more") as error:
        cachework.export(content, (), tmp_path / "f", Settings(own, None, True, Silent()))
    assert "kunlunfork cache export --vllm" in (error.value.fix or "")


@pytest.mark.parametrize("name", [".", "..", "", "no/such/folder/file", "folder"])
def test_export_into_something_that_is_no_file(name: str, own: Cache, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    before = digest(tmp_path)
    done = _cli(own, "export", "--offline", tmp_path / name if name else "")
    assert done.returncode in (errors.USER, errors.USAGE), done.stderr
    assert "Traceback" not in done.stderr
    assert digest(tmp_path) == before
