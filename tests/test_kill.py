"""A process that is killed at any step leaves a tree that the next command understands and mends."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import VERSION, apply, digest, follow, state, undo

from kunlunfork import errors, make, status, steps, target
from kunlunfork import journal as journals
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
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
    """Kill `work` at the first checkpoint of this name."""
    child = os.fork()
    if child == 0:
        steps.checkpoint = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == wanted else None
        try:
            work(tree)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), f"no checkpoint {wanted}"


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
@pytest.mark.parametrize("then", ["apply", "revert"])
@pytest.mark.parametrize("edit", ["a file", "two files", "a folder", "a pipe"])
def test_files_edited_after_the_kill_are_not_overwritten(
    verb: str, then: str, edit: str, tree: Path, small_content: Content, store: Store, tmp_path: Path
) -> None:
    pristine = digest(tree)
    wanted = tmp_path / "wanted"
    shutil.copytree(tree, wanted)
    if verb != "apply":
        apply(small_content, tree, store)
    if verb == "update":
        _newer(small_content)
    apply(small_content, wanted, store)
    _killed_before("rename", lambda t: undo(t) if verb == "revert" else apply(small_content, t, store), tree)
    names = {p.path.decode() for p in journals.read(tree / ".kunlunfork").changes}  # type: ignore[union-attr]
    victims = sorted(n for n in names if (tree / n).exists())[: 2 if edit == "two files" else 1]
    for name in victims:
        (tree / name).unlink()
        if edit == "a folder":
            (tree / name).mkdir()
        elif edit == "a pipe":
            os.mkfifo(tree / name)
        else:
            (tree / name).write_bytes(b"mine\n")
    found = state(tree, small_content)
    assert found.state == "interrupted"
    assert found.edits == tuple(victims)
    before = sorted((p.relative_to(tree).as_posix(), p.lstat().st_mode) for p in tree.rglob("*"))
    with pytest.raises(ForkError, match="edited since") as error:
        undo(tree) if then == "revert" else apply(small_content, tree, store)
    assert error.value.exit_code == errors.CONFLICT
    assert sorted((p.relative_to(tree).as_posix(), p.lstat().st_mode) for p in tree.rglob("*")) == before

    follow(error.value.fix, tmp_path, small_content)
    for name in victims:
        mine = tree / f"{name}.mine"
        assert not mine.is_file() or mine.read_bytes() == b"mine\n"
        mine.rmdir() if mine.is_dir() else mine.unlink()
        if not any(mine.parent.iterdir()):
            mine.parent.rmdir()  # a folder of the fork, which stayed for what was moved away in it
    assert digest(tree) == (pristine if then == "revert" else digest(wanted))
    assert state(tree, small_content).state == ("upstream" if then == "revert" else "applied")


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_what_status_says_of_a_killed_command_is_what_mends_it(
    verb: str, origin: Path, small_content: Content, store: Store, tmp_path: Path
) -> None:
    """Every fix that status gives is a command that can be pasted, whatever the tree's name."""
    named = origin.rename(tmp_path / "a tree, with 'quotes' & [globs]")
    if verb == "revert":
        apply(small_content, named, store)
    for step in range(0, 400, 7):
        victim = named.with_name("a victim's [copy]")
        shutil.copytree(named, victim)
        name = _killed_at(step, lambda v=victim: undo(v) if verb == "revert" else apply(small_content, v, store))
        found = state(victim, small_content)
        if found.fix is not None:
            follow(found.fix, tmp_path, small_content)
            assert state(victim, small_content).state in ("applied", "upstream"), (name, found.fix)
        shutil.rmtree(victim)
        if name is None:
            return
    pytest.fail("never came to its end")


def test_apply_of_a_release_goes_on_where_a_revert_was_killed(
    tree: Path, small_content: Content, store: Store, user_cache: Cache, tmp_path: Path
) -> None:
    """`apply --vllm V TREE` takes a tree with a killed command in it for the fork tree that it was."""
    apply(small_content, tree, store)
    applied = digest(tree)
    settings = Settings(user_cache, None, True, Silent())
    for step in range(400):
        victim = tmp_path / "victim"
        shutil.copytree(tree, victim)
        name = _killed_at(step, lambda v=victim: undo(v))
        if name is None or state(victim, small_content).state == "upstream":
            with pytest.raises(ForkError, match="carries no fork") as error:
                make.new_or_update(small_content, VERSION, victim, None, store, settings, dry_run=False)
            follow(error.value.fix, tmp_path, small_content)
        else:
            make.new_or_update(small_content, VERSION, victim, None, store, settings, dry_run=False)
        assert digest(victim) == applied, name
        shutil.rmtree(victim)
        if name is None:
            return
    pytest.fail("never came to its end")


def test_a_dry_run_does_not_look_past_a_killed_command(tree: Path, small_content: Content, store: Store) -> None:
    assert _killed_at(20, lambda: apply(small_content, tree, store)) is not None
    before = digest(tree)
    with pytest.raises(Exception, match="half changed"):
        apply(small_content, tree, store, dry_run=True)
    assert digest(tree) == before
