"""An export that ends too early, and a clone that went back: nothing is lost, and nobody is stuck."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream

from kunlunfork import export, exportfiles, fork, gittree, series, steps
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.exportfiles import Write

STATES = "vllm/v1/worker/gpu/states.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
SWITCHES = "vllm/v1/worker/gpu/kunlun/switches.py"
EXTRA = "vllm/v1/worker/gpu/kunlun/extra/deep.py"
FIELDS = "\n\nUpstream-Status: Pending\nRemove-When: never\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, content: Content) -> Author:
    return gitkit.author(tmp_path_factory.mktemp("author"), upstream, content)


@pytest.fixture
def me(template: Author, tmp_path: Path) -> Author:
    return gitkit.copy(template, tmp_path)


def _restore(me: Author) -> None:
    """As `git checkout .` and `git clean` in the clone."""
    for name in me.files().keys() - me.start.keys():
        (me.clone.root / name).unlink()
    for name, data in me.start.items():
        (me.clone.root / name).parent.mkdir(parents=True, exist_ok=True)
        (me.clone.root / name).write_bytes(data)


def _much(me: Author) -> None:
    """A new patch, a changed one, one less, another order; overlay files that come, change and go."""
    me.rebase("sed '3d;5{h;d};6{G}'")
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("New" + FIELDS)
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.commit("fixup! Take the V2 runner of the GPU worker from model_runner_v2")
    me.write(EXTRA, "X = 1\n")
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    (me.tree / "vllm/v1/worker/gpu/kunlun/__init__.py").unlink()
    me.commit("Overlay")


def _killed_at(step: int, me: Author, planned: export.Plan) -> bool:
    """Export in a child that is killed after its file number `step`; False where it came to its end."""
    child = os.fork()
    if child == 0:
        count = 0

        def checkpoint(_: str) -> None:
            nonlocal count
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        steps.checkpoint = checkpoint
        try:
            export.carry_out(me.clone, me.tree, planned)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_an_export_that_is_killed_anywhere_is_finished_by_the_next(me: Author) -> None:
    _much(me)
    state = gittree.state(me.tree)
    record = (state / exportfiles.MADE_FROM).read_bytes()
    planned = me.export()
    whole = me.files()
    changed = {name for name in {*whole, *me.start} if whole.get(name) != me.start.get(name)}
    assert len(changed) == len(planned.writes)
    listed = False
    for step in range(len(changed)):
        _restore(me)
        (state / exportfiles.MADE_FROM).write_bytes(record)
        assert _killed_at(step, me, planned)
        now = me.files()
        fork.load(me.clone, VERSION)  # what the series names is there
        assert {name for name in {*now, *me.start} if now.get(name) != me.start.get(name)} <= changed
        was, listed = listed, me.series() == [patch.name for patch in planned.patches]
        if was != listed or step == len(changed) - 1:
            me.export()
            assert me.files() == whole
            assert not (me.clone.root / ".kunlunfork").exists()
    assert listed
    me.check()


def test_patches_that_build_on_each_other_and_a_kill_between_them(me: Author) -> None:
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("One" + FIELDS)
    me.replace(STATES, b"A = 1\n", b"A = 1\nB = 1\n")
    me.commit("Two" + FIELDS)
    me.export()
    me.rebase("sed 's/\\(.* One\\)$/\\1\\nexec sed -i \"1i# first\" " + STATES.replace("/", "\\/") +
              " \\&\\& git commit -qa --amend --no-edit/'")  # fmt: skip
    assert me.read(STATES).startswith(b"# first\n")
    assert _killed_at(0, me, me.plan())
    with pytest.raises(ForkError):
        series_fits(me)
    me.export()
    series_fits(me)
    me.check()


def series_fits(me: Author) -> None:
    built = fork.load(me.clone, VERSION)
    base = me.store.find("sdist", VERSION)
    assert base is not None
    entries = me.store.entries(base.tree)
    files: fork.Files = dict.fromkeys(built.touched)
    files.update(me.store.read({p: e for p, e in entries.items() if p in built.touched}))
    fork.build(built, files)


def test_discarded_in_the_clone_and_exported_again(me: Author) -> None:
    _much(me)
    me.export()
    once = me.files()
    _restore(me)
    me.export()
    assert me.files() == once
    me.write(EXTRA, "X = 2\n")
    me.commit("fixup! Overlay")
    me.export()
    (me.clone.overlay / VERSION / EXTRA).write_text("X = 1\n")  # what the export before wrote
    me.export()
    assert (me.clone.overlay / VERSION / EXTRA).read_text() == "X = 2\n"
    (me.clone.overlay / VERSION / EXTRA).write_text("X = 3\n")
    with pytest.raises(ForkError, match="has changed since"):
        me.export()
    assert (me.clone.overlay / VERSION / EXTRA).read_text() == "X = 3\n"


def test_the_same_edit_by_hand_in_the_clone(me: Author) -> None:
    me.replace(SWITCHES, b"\n", b"\n# one line\n")
    me.commit("One line")
    (me.clone.overlay / VERSION / SWITCHES).write_bytes(me.read(SWITCHES))
    planned = me.plan()
    assert planned.writes == ()
    export.remember(me.clone, me.tree, planned)
    me.replace(SWITCHES, b"# one line\n", b"# two\n")
    me.commit("fixup! One line")
    me.export()


@pytest.mark.parametrize("how", ["order", "commented out", "a name more"])
def test_a_series_that_changed_in_the_clone_is_not_written_over(me: Author, how: str) -> None:
    file = me.clone.patches / VERSION / "series"
    names = me.series()
    if how == "order":
        file.write_text("\n".join([*names[1:], names[0]]) + "\n")
    elif how == "commented out":
        file.write_text("\n".join([*names[:-1], f"# {names[-1]}"]) + "\n")
    else:
        source = (me.clone.patches / VERSION / names[0]).read_bytes()
        (me.clone.patches / VERSION / "more.patch").write_bytes(source)
        file.write_text("\n".join([*names, "more.patch"]) + "\n")
    changed = me.files()
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("New" + FIELDS)
    with pytest.raises(ForkError, match="has changed since") as error:
        me.export()
    assert error.value.exit_code == CONFLICT
    assert any(line.startswith(f"patches/{VERSION}/series: ") for line in error.value.details)
    assert me.files() == changed


def test_a_comment_that_changed_in_the_series_is_kept(me: Author) -> None:
    file = me.clone.patches / VERSION / "series"
    file.write_bytes(b"# why\n" + file.read_bytes())
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.commit("New" + FIELDS)
    me.export()
    assert file.read_bytes().startswith(b"# why\n")
    assert [patch.name for patch in series.load_series(file.parent)][-1] == "new.patch"


def test_a_file_that_cannot_be_written_leaves_all_as_it_was(me: Author) -> None:
    _much(me)
    (me.clone.overlay / VERSION / EXTRA).mkdir(parents=True)
    (me.clone.overlay / VERSION / EXTRA / "mine").mkdir()
    with pytest.raises(ForkError, match="in the way"):
        me.export()
    assert me.files() == me.start
    assert not (me.clone.root / ".kunlunfork").exists()
    shutil.rmtree(me.clone.overlay / VERSION / EXTRA)
    me.export()
    me.check()


def test_what_a_killed_export_staged_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".kunlunfork" / "export-0123"
    left.mkdir(parents=True)
    (left / "0").write_bytes(b"x")
    (tmp_path / ".kunlunfork" / "rebase").mkdir()
    exportfiles.write(tmp_path, [Write(Path("a/b"), b"1", None)])
    assert sorted(p.name for p in tmp_path.iterdir()) == [".kunlunfork", "a"]
    assert [p.name for p in (tmp_path / ".kunlunfork").iterdir()] == ["rebase"]


def test_a_folder_of_the_overlay_becomes_a_file_and_back(me: Author) -> None:
    folder = "vllm/v1/worker/gpu/kunlun/data"
    me.write(f"{folder}/a.bin", "a")
    me.write(f"{folder}/b/c.bin", "c")
    me.commit("Data")
    me.export()
    shutil.rmtree(me.tree / folder)
    me.write(folder, "a file")
    me.commit("A file")
    me.export()
    assert (me.clone.overlay / VERSION / folder).read_text() == "a file"
    me.check()
    me.git("revert", "--no-edit", "HEAD")
    me.export()
    assert (me.clone.overlay / VERSION / folder / "b/c.bin").read_text() == "c"
    me.check()
