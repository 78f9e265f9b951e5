"""What status and verify say, against what is there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from support import VERSION, Upstream, apply, state, undo

from kunlunfork import paths, status, steps, target
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.paths import Entry
from kunlunfork.status import Verdict
from kunlunfork.store import Store


def _verify(tree: Path, content: Content, upstream: Upstream) -> Verdict:
    files: dict[bytes, Entry] = {path: entry for path, (entry, _) in upstream.files.items()}
    return status.verify(target.of_tree(tree), content, files)


def test_a_whole_tree_has_no_differences(content: Content, tree: Path, store: Store, upstream: Upstream) -> None:
    apply(content, tree, store)
    (tree / "vllm/__pycache__").mkdir()
    (tree / "vllm/__pycache__/version.cpython-312.pyc").write_bytes(b"x")
    verdict = _verify(tree, content, upstream)
    assert verdict.problems == ()
    assert verdict.others == ()


OTHERS = {
    "vllm/evil.py (added)": lambda t: (t / "vllm/evil.py").write_text("import os\n"),
    "vllm/v1/worker/gpu/kunlun/evil.py (added)": lambda t: (t / "vllm/v1/worker/gpu/kunlun/evil.py").write_text(""),
    "vllm/evil (added)": lambda t: (t / "vllm/evil").symlink_to("/tmp"),
    "vllm/version.py": lambda t: (t / "vllm/version.py").write_text("# mine\n"),
    "vllm/version.py (mode)": lambda t: (t / "vllm/version.py").chmod(0o755),
    "setup.py": lambda t: (t / "setup.py").unlink(),
    "vllm/v1/worker/gpu/README.md": lambda t: (
        (t / "vllm/v1/worker/gpu/README.md").unlink(),
        os.mkfifo(t / "vllm/v1/worker/gpu/README.md"),
    ),
    "vllm/v1/worker/gpu/states.py": lambda t: os.truncate(t / "vllm/v1/worker/gpu/states.py", 10 << 40),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_difference_is_a_warning(
    name: str, content: Content, tree: Path, store: Store, upstream: Upstream
) -> None:
    apply(content, tree, store)
    OTHERS[name](tree)
    verdict = _verify(tree, content, upstream)
    assert verdict.problems == ()
    assert verdict.others == (name,)


def test_a_folder_replaced_by_a_link_is_a_difference(
    content: Content, tree: Path, store: Store, upstream: Upstream, tmp_path: Path
) -> None:
    apply(content, tree, store)
    (tree / "vllm/v1").rename(tmp_path / "v1")
    (tree / "vllm/v1").symlink_to(tmp_path / "v1")
    verdict = _verify(tree, content, upstream)
    assert "vllm/v1: replaced by a link" in verdict.problems
    assert "vllm/v1 (a link)" in verdict.others


def test_status_suggests_no_apply_that_would_be_refused(content: Content, tree: Path) -> None:
    assert state(tree, content).fix == f"kunlunfork apply --in-place {shlex.quote(str(tree))}"
    file = tree / "vllm/_version.py"
    text = file.read_bytes()
    for old, new in ((VERSION.encode(), b"0.24.0"), (b"g752a3a504", b"gdeadbeef0")):
        file.write_bytes(text.replace(old, new))
        found = state(tree, content)
        assert (found.state, found.fix) == ("upstream", None)


def test_a_tree_of_another_release_gets_a_command_that_works(content: Content, tree: Path, store: Store) -> None:
    file = tree / "vllm/_version.py"
    file.write_bytes(file.read_bytes().replace(VERSION.encode(), b"0.24.0"))
    with pytest.raises(ForkError, match="another version") as error:
        apply(content, tree, store, wanted=VERSION)
    assert error.value.fix == f"kunlunfork apply --vllm {VERSION}", "there is no pin for 0.24.0"


def test_a_lost_stage_of_a_killed_apply_leaves_the_way_back(content: Content, tree: Path, store: Store) -> None:
    before = _all(tree)
    left = 3

    def stop(name: str) -> None:
        nonlocal left
        left -= name == "rename"
        if left < 0:
            raise SystemExit

    steps.checkpoint, old = stop, steps.checkpoint
    try:
        with pytest.raises(SystemExit):
            apply(content, tree, store)
    finally:
        steps.checkpoint = old
    for file in (tree / ".kunlunfork/stage").iterdir():
        file.unlink()
    with pytest.raises(ForkError, match="are missing in") as error:
        apply(content, tree, store)
    assert "revert" in (error.value.fix or "")
    undo(tree)
    assert _all(tree) == before


def _all(tree: Path) -> dict[bytes, Entry | None]:
    names = [paths.from_disk(p.relative_to(tree)) for p in tree.rglob("*") if not p.is_dir()]
    return {name: paths.present(tree, name) for name in names}
