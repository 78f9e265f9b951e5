"""A process that is killed at any step leaves a tree that the next command understands and mends."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import VERSION, apply, digest, state, undo

from kunlunfork import status, steps, target
from kunlunfork.content import Content
from kunlunfork.store import Store


def _killed_at(step: int, work: Callable[[], object]) -> str | None:
    """Run `work` in a child that is killed at checkpoint number `step`: its name, None where `work` came to its end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def checkpoint(name: str) -> None:
            nonlocal count
            if count == step:
                os.write(writer, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        steps.checkpoint = checkpoint
        try:
            work()
        finally:
            os._exit(0)
    os.close(writer)
    name = os.read(reader, 100).decode()
    os.close(reader)
    _, end = os.waitpid(child, 0)
    assert bool(name) == os.WIFSIGNALED(end)
    return name or None


def _newer(content: Content) -> None:
    """Another overlay and a shorter series, so that an update changes, adds and removes."""
    folder = content.overlay / VERSION / "vllm/v1/worker/gpu"
    (folder / "kunlun/__init__.py").write_bytes(b"# newer\n")
    (folder / "kunlun/sub").mkdir()
    (folder / "kunlun/sub/more.py").write_bytes(b"# more\n")
    (folder / "model_runner_v2.py").unlink()
    series = content.patches / VERSION / "series"
    names = [line for line in series.read_text().split("\n") if line and not line.startswith("#")]
    series.write_text("\n".join(names[:-1]) + "\n")


def _with_dist_info(tree: Path) -> Path:
    """Turn the small tree into an installed one."""
    info = tree / "vllm-0.25.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1\n")
    (info / "INSTALLER").write_text("pip\n")
    files = sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*files, "vllm-0.25.1.dist-info/RECORD"]))
    return tree


@pytest.fixture(params=["plain", "installed"])
def origin(request: pytest.FixtureRequest, tree: Path) -> Path:
    return _with_dist_info(tree) if request.param == "installed" else tree


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
def test_killed_at_every_step(verb: str, origin: Path, small_content: Content, store: Store, tmp_path: Path) -> None:
    pristine = digest(origin)
    old = small_content
    new_root = tmp_path / "newer"
    shutil.copytree(old.root, new_root)
    new = Content(new_root, clone=True)
    _newer(new)
    start = tmp_path / "start"
    shutil.copytree(origin, start)
    if verb != "apply":
        apply(old, start, store)
    wanted = tmp_path / "wanted"
    shutil.copytree(origin, wanted)
    apply(new, wanted, store)
    applied = digest(wanted)
    names = []
    for step in range(500):
        victim = tmp_path / "victim"
        shutil.copytree(start, victim)
        work = {
            "apply": lambda v=victim: apply(new, v, store),
            "update": lambda v=victim: apply(new, v, store),
            "revert": lambda v=victim: undo(v),
        }[verb]
        name = _killed_at(step, work)
        if name is None:
            break
        names.append(name)
        # Twice from the same wreck: once forwards, once back.
        twin = tmp_path / "twin"
        shutil.copytree(victim, twin, symlinks=True)

        found = state(victim, new)
        assert found.state in ("upstream", "applied", "interrupted", "leftover"), (name, found)
        if found.state in ("interrupted", "leftover"):
            assert found.fix
        assert apply(new, victim, store).action in ("applied", "updated", "unchanged")
        assert digest(victim) == applied, (name, "apply")
        assert status.verify(target.of_tree(victim), new, None).problems == ()

        if state(twin, new).state != "upstream":
            undo(twin)
        assert digest(twin) == pristine, (name, "revert")
        shutil.rmtree(victim)
        shutil.rmtree(twin)
    expected = {"journal", "rename", "lock", "clean", "end", "stage", "sync"}
    if verb != "apply":
        expected |= {"unlink"}
    assert expected <= set(names)
    assert len(names) > 20


def test_a_kill_during_the_recovery_is_mended_too(
    tree: Path, small_content: Content, store: Store, tmp_path: Path
) -> None:
    pristine = digest(tree)
    assert _killed_at(20, lambda: apply(small_content, tree, store)) is not None
    assert state(tree, small_content).state == "interrupted"
    for step in range(200):
        victim = tmp_path / "victim"
        shutil.copytree(tree, victim)
        name = _killed_at(step, lambda v=victim: undo(v))
        if state(victim, small_content).state != "upstream":
            undo(victim)
        assert digest(victim) == pristine
        shutil.rmtree(victim)
        if name is None:
            assert step > 3
            return
    pytest.fail("the recovery never came to its end")


def _killed_before(wanted: str, work: Callable[[Path], object], tree: Path) -> None:
    """Kill `work` at the first checkpoint of this name; the tries before it work on copies."""
    for step in range(200):
        trial = tree.with_name("trial")
        shutil.copytree(tree, trial)
        name = _killed_at(step, lambda t=trial: work(t))
        assert name is not None, f"no checkpoint {wanted}"
        if name == wanted:
            shutil.rmtree(tree)
            trial.rename(tree)
            return
        shutil.rmtree(trial)


def test_files_edited_after_the_kill_are_not_overwritten(tree: Path, small_content: Content, store: Store) -> None:
    _killed_before("rename", lambda t: apply(small_content, t, store), tree)
    victim = tree / "vllm/v1/worker/gpu_worker.py"
    victim.write_bytes(b"mine\n")
    found = state(tree, small_content)
    assert found.state == "interrupted"
    assert found.edits == ("vllm/v1/worker/gpu_worker.py",)
    with pytest.raises(Exception, match="edited since"):
        undo(tree)
    with pytest.raises(Exception, match="edited since"):
        apply(small_content, tree, store)
    assert victim.read_bytes() == b"mine\n"


def test_a_dry_run_does_not_look_past_a_killed_command(tree: Path, small_content: Content, store: Store) -> None:
    assert _killed_at(20, lambda: apply(small_content, tree, store)) is not None
    before = digest(tree)
    with pytest.raises(Exception, match="half changed"):
        apply(small_content, tree, store, dry_run=True)
    assert digest(tree) == before
