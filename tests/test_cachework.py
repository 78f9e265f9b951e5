from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from support import VERSION

from kunlunfork import cachework
from kunlunfork.cache import Cache
from kunlunfork.cachework import MANIFEST
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.paths import REGULAR
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings, release
from kunlunfork.store import Base, Store


@pytest.fixture
def exported(content: Content, base: Base, user_cache: Cache, tmp_path: Path) -> Path:
    file = tmp_path / "vllm.kfcache"
    cachework.export(content, (VERSION,), file, Settings(user_cache, None, True, Silent()))
    return file


def test_carries_a_release_to_a_machine_without_an_index(
    content: Content, base: Base, exported: Path, tmp_path: Path
) -> None:
    far = Cache(tmp_path / "far")
    (imported,) = cachework.load(content, exported, far, Silent())
    assert imported.tree == base.tree
    settings = Settings(far, None, True, Silent())
    assert release(content.pin(VERSION), Store(far.store), settings).tree == base.tree
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".new")] == []


def _rewrite(source: Path, target: Path, change: dict[str, bytes]) -> Path:
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            body = old.extractfile(member)
            assert body is not None
            data = change.get(member.name, body.read())
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return target


def test_a_changed_release_is_refused(content: Content, exported: Path, tmp_path: Path) -> None:
    pin = content.pin(VERSION)
    bad = _rewrite(exported, tmp_path / "bad", {pin.sdist_name: b"evil"})
    far = Cache(tmp_path / "far")
    with pytest.raises(ForkError) as error:
        cachework.load(content, bad, far, Silent())
    assert error.value.expected == f"SHA-256 {pin.sdist_sha256}"
    assert list(far.downloads.iterdir()) == []
    assert Store(far.store).bases() == ()


@pytest.mark.parametrize(
    "manifest",
    [
        b"no json",
        b"[]",
        json.dumps({"schema": 2, "sdists": []}).encode(),
        json.dumps({"schema": 1, "sdists": [{"version": "9.9.9", "name": "x"}]}).encode(),
        json.dumps({"schema": 1, "sdists": [{"version": VERSION, "name": "../missing"}]}).encode(),
        json.dumps({"schema": 1, "sdists": [1]}).encode(),
    ],
)
def test_a_hostile_manifest_is_refused(manifest: bytes, content: Content, exported: Path, tmp_path: Path) -> None:
    bad = _rewrite(exported, tmp_path / "bad", {MANIFEST: manifest})
    with pytest.raises(ForkError):
        cachework.load(content, bad, Cache(tmp_path / "far"), Silent())


def test_other_files_are_refused(content: Content, tmp_path: Path) -> None:
    for name, data in {"junk": b"junk", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ForkError):
            cachework.load(content, tmp_path / name, Cache(tmp_path / "far"), Silent())
    with pytest.raises(ForkError):
        cachework.load(content, tmp_path / "missing", Cache(tmp_path / "far"), Silent())


def test_prune_keeps_what_a_pin_needs(content: Content, tmp_path: Path) -> None:
    own = Cache(tmp_path / "own")
    pin = content.pin(VERSION)
    store = Store(own.store)
    kept = store.import_members("sdist", VERSION, pin.sdist_sha256, [(b"vllm/a.py", REGULAR, b"a")])
    store.import_members("sdist", "0.1.0", "0" * 64, [(b"vllm/b.py", REGULAR, b"b")])
    own.downloads.mkdir()
    for name in (pin.sdist_name, "vllm-0.1.0.tar.gz", "vllm-0.1.0.tar.gz.part"):
        (own.downloads / name).write_bytes(b"x")

    names, _ = cachework.prune(content, own, everything=False, dry_run=True)
    assert len(cachework.listing(own).bases) == 2
    assert set(names) == {"sdist 0.1.0", pin.sdist_name, "vllm-0.1.0.tar.gz", "vllm-0.1.0.tar.gz.part"}
    cachework.prune(content, own, everything=False, dry_run=False)
    after = cachework.listing(own)
    assert after.bases == (kept,)
    assert after.downloads == ()
    assert store.read(store.entries(kept.tree))[b"vllm/a.py"][1] == b"a"

    cachework.prune(content, own, everything=True, dry_run=False)
    assert cachework.listing(own).bases == ()
    assert not own.store.exists()
