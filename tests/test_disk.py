"""Disks that are full or read only, on a real file system of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import VERSION, Upstream, apply, digest, state, undo

from kunlunfork import make
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs of 8 MB."""
    point = tmp_path / "disk"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield point
    subprocess.run(["umount", "-l", point], check=True)


def _leave(disk: Path, free: int) -> None:
    """Fill the disk until `free` bytes are left."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    stat = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(stat.f_bavail * stat.f_frsize - free, 4096))


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_full_disk_changes_nothing(verb: str, content: Content, store: Store, disk: Path, upstream: Upstream) -> None:
    tree = upstream.write(disk / "tree")
    if verb == "revert":
        apply(content, tree, store)
    before = digest(tree)
    ends = set()
    for free in range(0, 6 << 20, 1 << 18):
        _leave(disk, free)
        try:
            apply(content, tree, store) if verb == "apply" else undo(tree)
        except ForkError as e:
            assert e.found is not None
            assert "No space left" in e.found
            assert digest(tree) == before, free
            assert state(tree, content).state == ("upstream" if verb == "apply" else "applied")
            ends.add("full")
            continue
        ends.add("fits")
        break
    assert ends == {"full", "fits"}


def test_a_full_disk_leaves_no_new_tree(
    content: Content, store: Store, base: Base, disk: Path, user_cache: Cache
) -> None:
    settings = Settings(user_cache, None, True, Silent())
    with pytest.raises(ForkError) as error:
        make.new_or_update(content, VERSION, disk / "tree", "pypi", store, settings, dry_run=False)
    assert "No space left" in (error.value.found or "")
    assert list(disk.iterdir()) == []


def test_a_full_disk_leaves_no_half_store(content: Content, disk: Path, sdist: Path, store: Store) -> None:
    small = Cache(disk / "cache")
    settings = Settings(small, None, True, Silent())
    with pytest.raises(ForkError):
        make.new_or_update(content, VERSION, disk / "tree", str(sdist), Store(small.store), settings, dry_run=False)
    assert Store(small.store).bases() == ()
    assert not (disk / "tree").exists()


def test_a_read_only_disk(content: Content, store: Store, disk: Path, upstream: Upstream, user_cache: Cache) -> None:
    tree = upstream.write(disk / "tree")
    other = shutil.copytree(tree, disk / "other")
    apply(content, other, store)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    before, applied = digest(tree), digest(other)
    for work in (
        lambda: apply(content, tree, store),
        lambda: undo(other),
        lambda: make.new_or_update(
            content, VERSION, disk / "new", str(tree), store, Settings(user_cache, None, True, Silent()), dry_run=False
        ),
    ):
        with pytest.raises(ForkError) as error:
            work()
        assert "Read-only" in (error.value.found or "")
    assert (digest(tree), digest(other)) == (before, applied)
    assert state(tree, content).state == "upstream"
    assert state(other, content).state == "applied"
    assert apply(content, tree, store, dry_run=True).dry_run, "a dry run needs no right to write"


def test_a_tree_of_someone_else(content: Content, store: Store, tree: Path, tmp_path: Path) -> None:
    """As another user, who may read the tree but not write it."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    before = digest(tree)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for parent in (*tree.parents, *store.path.parents):
                if tree.parents[2] in (parent, *parent.parents):
                    parent.chmod(0o755)
            tree.chmod(0o755)
            subprocess.run(["chmod", "-R", "a+rwX", store.path], check=True)
            from kunlunfork import target

            found = target.of_tree(tree)
            os.setgid(65534)
            os.setuid(65534)
            from kunlunfork.apply import apply_in_place

            try:
                apply_in_place(content, found, store, wanted=None, dry_run=False, progress=Silent())
            except ForkError as e:
                os.write(writer, (e.found or str(e)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert b"Permission denied" in os.read(reader, 4096)
    assert digest(tree) == before


def test_root_keeps_the_owner_of_what_it_changes(content: Content, store: Store, tree: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for full in (tree, *tree.rglob("*")):
        os.chown(full, 1234, 1235)
    apply(content, tree, store)
    owners = {(st.st_uid, st.st_gid) for f in tree.rglob("*") if ".kunlunfork" not in f.parts for st in (f.lstat(),)}
    assert owners == {(1234, 1235)}
    undo(tree)
    assert {(f.lstat().st_uid, f.lstat().st_gid) for f in tree.rglob("*")} == {(1234, 1235)}
