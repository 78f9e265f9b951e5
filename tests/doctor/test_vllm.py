"""Which vLLM, and who has changed it: real trees."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import support
from support import VERSION, Upstream

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import target as targets
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.doctor import vllm
from kunlunfork.doctor.vllm import Wanted
from kunlunfork.record import rewrite_record
from kunlunfork.sources.interpreter import probe
from kunlunfork.store import Base, Store

WORKER = "vllm/v1/worker/gpu_worker.py"
MEDDLED = {"lock": "bad", "edited": "bad", "missing": "bad", "overlay": "bad", "interrupted": "bad"}


def patched(tree: Path, content: Content) -> vllm.Patched:
    return vllm.check_patched(targets.of_tree(tree), content)


def test_upstream(tree: Path, content: Content, store: Store) -> None:
    found = patched(tree, content)
    assert (found.lock, found.whole) == (None, False)
    # The small tree lacks most files of the release.
    assert found.check.state == "note"
    assert "are not as released" in found.check.found


def test_upstream_without_a_store(tree: Path, content: Content, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KUNLUNFORK_CACHE", str(tmp_path / "empty"))
    found = patched(tree, content)
    assert (found.check.state, found.check.found.startswith("not kunlunfork")) == ("note", True)
    assert not (tmp_path / "empty").exists()


def test_without_git(tree: Path, content: Content, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = patched(tree, content)
    assert found.check.state == "note"
    assert "git is not installed" in found.check.found


def test_applied(tree: Path, content: Content, store: Store) -> None:
    support.apply(content, tree, store)
    found = patched(tree, content)
    assert (found.check.state, found.whole) == ("ok", True)
    assert found.lock is not None
    assert vllm.check_record(targets.of_tree(tree), found.lock, None) is None


@pytest.mark.parametrize("how", MEDDLED)
def test_meddled_with(tree: Path, content: Content, store: Store, tmp_path: Path, how: str) -> None:
    support.apply(content, tree, store)
    state = targets.of_tree(tree).state
    if how == "lock":
        (state / locks.NAME).write_text("{}")
    elif how == "edited":
        (tree / WORKER).write_text("# mine\n")
    elif how == "missing":
        (tree / WORKER).unlink()
    elif how == "overlay":
        shutil.rmtree(state)
    else:
        (state / journals.NAME).write_text("{")
    found = patched(tree, content)
    assert found.check.state == MEDDLED[how]
    assert found.check.fix
    assert not found.whole
    if how in ("edited", "missing"):
        support.follow(found.check.fix, tmp_path, content)
        assert patched(tree, content).check.state == "ok"


def test_edits_of_a_git_tree_are_its_authors(
    base: Base, content: Content, store: Store, user_cache: Cache, tmp_path: Path
) -> None:
    root = tmp_path / "git tree"
    command = [sys.executable, "-m", "kunlunfork", "apply", "--vllm", VERSION, "--offline", "--git", str(root)]
    subprocess.run(command, check=True, env={**os.environ, "KUNLUNFORK_REPO": str(content.root)})
    assert patched(root, content).check.state == "ok"
    (root / WORKER).write_text("# mine\n")
    found = patched(root, content)
    assert (found.check.state, found.whole) == ("note", False)
    assert found.check.fix is not None
    assert found.check.fix.startswith("kunlunfork export ")


def test_an_older_fork_is_a_note(tree: Path, content: Content, small_content: Content, store: Store) -> None:
    support.apply(small_content, tree, store)
    found = patched(tree, content)
    assert (found.check.state, found.whole) == ("note", True)
    assert found.check.fix is not None
    assert found.check.fix.startswith("kunlunfork apply")


def installed(upstream: Upstream, tmp_path: Path) -> tuple[Path, Path]:
    """(interpreter, its site-packages), made by hand with real files."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (site,) = (env / "lib").glob("python*/site-packages")
    upstream.write(site)
    info = site / f"vllm-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: vllm\nVersion: {VERSION}\n")
    (info / "INSTALLER").write_text("pip\n")
    written = {p: (site / os.fsdecode(p)).read_bytes() for p in upstream.files if p.startswith(b"vllm/")}
    (info / "RECORD").write_bytes(rewrite_record(b"", written=written))
    return env / "bin" / "python", site


def test_record(upstream: Upstream, tmp_path: Path, content: Content, store: Store) -> None:
    _, site = installed(upstream, tmp_path)

    def record(lock: locks.Lock | None):
        found = vllm.check_record(targets.of_tree(site), lock, patched(site, content).check.fix)
        assert found is not None
        return found

    assert record(None).state == "ok"
    (site / WORKER).write_bytes((upstream.files[WORKER.encode()])[1] + b"# mine\n")
    assert record(None).state == "note"
    assert record(None).details[0].startswith(WORKER)
    (site / WORKER).write_bytes(upstream.files[WORKER.encode()][1])
    support.apply(content, site, store)
    lock = locks.read(targets.of_tree(site).state)
    assert record(lock).state == "ok"
    info = site / f"vllm-{VERSION}.dist-info" / "RECORD"
    info.write_bytes(info.read_bytes().replace(b"vllm/v1/worker/gpu/kunlun/binder.py,", b"gone,"))
    assert record(lock).state == "bad"
    # status calls it edited, and has the way out.
    assert (
        record(lock).fix
        == patched(site, content).check.fix
        == f"pip install --force-reinstall --no-deps vllm=={VERSION}"
    )
    target = targets.of_tree(site)
    info.write_bytes(info.read_bytes() + b'"unpaired')
    damaged = vllm.check_record(target, lock, None)
    assert damaged is not None
    assert (damaged.state, bool(damaged.fix)) == ("bad", True)


@pytest.mark.parametrize(
    ("mode", "stale"),
    [
        (py_compile.PycInvalidationMode.UNCHECKED_HASH, True),
        (py_compile.PycInvalidationMode.CHECKED_HASH, False),
        (py_compile.PycInvalidationMode.TIMESTAMP, False),
    ],
)
def test_bytecode(tree: Path, content: Content, store: Store, mode, stale: bool) -> None:
    support.apply(content, tree, store)
    target = targets.of_tree(tree)
    lock = locks.read(target.state)
    assert lock is not None
    file = tree / WORKER
    kept = file.read_bytes()
    py_compile.compile(str(file), invalidation_mode=mode)
    assert vllm.check_bytecode(target, lock).state == "ok"
    file.write_bytes(b"x = 1\n")
    py_compile.compile(str(file), invalidation_mode=mode)
    file.write_bytes(kept)
    found = vllm.check_bytecode(target, lock)
    assert found.state == ("bad" if stale else "ok")
    if stale:
        subprocess.run(["sh", "-euc", str(found.fix)], check=True)
        assert vllm.check_bytecode(target, lock).state == "ok"


@pytest.mark.parametrize(
    "data", [b"", b"short", importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + b"12345678" + marshal.dumps(0)]
)
def test_odd_bytecode(tree: Path, content: Content, store: Store, data: bytes) -> None:
    support.apply(content, tree, store)
    target = targets.of_tree(tree)
    cached = tree / importlib.util.cache_from_source(WORKER)
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(data)
    lock = locks.read(target.state)
    assert lock is not None
    assert vllm.check_bytecode(target, lock).state == ("bad" if len(data) > 16 else "ok")


def test_which_vllm(
    upstream: Upstream, tmp_path: Path, tree: Path, content: Content, store: Store, monkeypatch
) -> None:
    python, site = installed(upstream, tmp_path)
    interpreter = probe(python)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)

    def found(wanted: Wanted, who=interpreter):
        target, line = vllm.find(wanted, who)
        return None if target is None else target.root, line.state

    assert found(Wanted(None, False, python)) == (site, "ok")
    assert found(Wanted(None, True, python)) == (site, "ok")
    assert found(Wanted(tree, False, python)) == (tree, "ok")
    assert found(Wanted(empty, False, None)) == (None, "bad")
    assert found(Wanted(None, False, None), probe(None)) == (None, "note")
    assert found(Wanted(None, True, None), probe(None)) == (None, "bad")
    assert found(Wanted(None, False, None), None) == (None, "note")
    support.apply(content, tree, store)
    monkeypatch.chdir(tree / "vllm")
    assert found(Wanted(None, False, None)) == (tree, "ok")
    assert found(Wanted(None, False, python)) == (site, "ok")
    (site / f"vllm-{VERSION}.dist-info" / "METADATA").write_bytes(b"")
    assert found(Wanted(None, False, python)) == (None, "bad")
