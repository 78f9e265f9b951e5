"""What lies in the state folder: only what is ours goes, and the end of a change is never taken back."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import VERSION, apply, digest, state, undo

from kunlunfork import errors, recovery, status, steps, target
from kunlunfork.apply import apply_in_place, revert
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.store import Store


@pytest.mark.parametrize("name", ["", "pre", "stage"])
@pytest.mark.parametrize("kind", ["link", "dangling", "file"])
@pytest.mark.parametrize("applied", [True, False])
def test_nothing_is_deleted_behind_a_link(
    name: str, kind: str, applied: bool, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    if applied:
        apply(content, tree, store)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("mine")
    (victim / ("0" * 40)).write_text("mine too")
    (tree / ".kunlunfork").mkdir(exist_ok=True)
    folder = tree / ".kunlunfork" / name
    if name != "stage":
        (tree / ".kunlunfork/stage").mkdir(exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    if kind == "file":
        folder.write_text("x")
    else:
        folder.symlink_to(victim if kind == "link" else tmp_path / "nothing")
    before, kept = digest(tree), digest(victim)
    for work in (lambda: apply(content, tree, store), lambda: undo(tree), lambda: state(tree, content)):
        with pytest.raises(ForkError, match="no folder of kunlunfork") as error:
            work()
        assert str(folder) in (error.value.fix or "")
    assert (digest(tree), digest(victim)) == (before, kept)


FOREIGN = {
    ".lock.json.swp": False,
    "notes.txt": False,
    "lost+found": True,
    "pre/lost+found": True,
    "pre/notes.txt": False,
    "stage/notes.txt": False,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_stay_and_are_in_nobodys_way(name: str, content: Content, tree: Path, store: Store) -> None:
    pristine = digest(tree)
    apply(content, tree, store)
    mine = tree / ".kunlunfork" / name
    mine.parent.mkdir(exist_ok=True)
    if FOREIGN[name]:
        mine.mkdir()
        mine = mine / "file"
    mine.write_text("mine")
    assert state(tree, content).state == "applied"
    assert apply(content, tree, store).action == "unchanged"
    for _ in range(2):
        progress = Silent()
        revert(target.of_tree(tree), dry_run=False, progress=progress)
        assert len(progress.warnings) == 1
        assert "is not kunlunfork's" in progress.warnings[0]
        assert mine.read_text() == "mine"
        assert state(tree, content).state == "upstream"
        assert {n: v for n, v in digest(tree).items() if not n.startswith(".kunlunfork")} == pristine
        with pytest.raises(ForkError, match="carries no fork"):
            undo(tree)
        assert apply(content, tree, store).action == "applied"
        assert state(tree, content).state == "applied"


def _newer(content: Content) -> None:
    series = content.patches / VERSION / "series"
    names = [line for line in series.read_text().split("\n") if line and not line.startswith("#")]
    series.write_text("\n".join(names[:-1]) + "\n")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _broken_disk() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class _At:
    """Does something at each checkpoint of these names, from the `first` one on."""

    def __init__(self, names: set[str], first: int, act: Callable[[], None]) -> None:
        self.names, self.left, self.act = names, first, act

    def __call__(self, name: str) -> None:
        if name in self.names:
            self.left -= 1
            if self.left < 0:
                self.act()


# What happens once there is no way back.
CLEANING = {"clean", "drop pre-image", "drop stage", "remove state"}


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
@pytest.mark.parametrize("fault", [_interrupt, _broken_disk])
def test_a_change_that_is_complete_is_never_taken_back(
    verb: str, fault: Callable[[], None], small_content: Content, tree: Path, store: Store, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pristine = digest(tree)
    if verb != "apply":
        apply(small_content, tree, store)
    if verb == "update":
        _newer(small_content)
    done = False
    step = 0
    while not done:
        victim = tmp_path / "victim"
        shutil.copytree(tree, victim)
        at = _At(CLEANING - ({"clean"} if fault is _broken_disk else set()), step, fault)
        monkeypatch.setattr(steps, "checkpoint", at)
        progress = Silent()
        found = target.of_tree(victim)
        try:
            if verb == "revert":
                revert(found, dry_run=False, progress=progress)
            else:
                apply_in_place(small_content, found, store, wanted=None, dry_run=False, progress=progress)
            done = at.left >= 0
            assert done != bool(progress.warnings), "what could not be deleted is said"
        except KeyboardInterrupt:
            assert fault is _interrupt
        monkeypatch.setattr(steps, "checkpoint", lambda name: None)
        after = state(victim, small_content)
        assert after.state in ("applied", "upstream", "leftover")
        assert (after.lock is None) == (verb == "revert")
        if after.state != "upstream":
            undo(victim)
        assert digest(victim) == pristine, (verb, step)
        shutil.rmtree(victim)
        step += 1
    assert step > 1


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
@pytest.mark.parametrize("then", ["apply", "revert"])
def test_a_journal_that_cannot_be_removed_is_told_and_keeps_both_ways_open(
    verb: str, then: str, small_content: Content, tree: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pristine = digest(tree)
    if verb != "apply":
        apply(small_content, tree, store)
    if verb == "update":
        _newer(small_content)
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "journal.json":
            _broken_disk()
        real(path, missing_ok)

    progress = Silent()
    found = target.of_tree(tree)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        if verb == "revert":
            revert(found, dry_run=False, progress=progress)
        else:
            apply_in_place(small_content, found, store, wanted=None, dry_run=False, progress=progress)
    assert len(progress.warnings) == 1
    assert "the change is complete" in progress.warnings[0]
    assert state(tree, small_content).state == "interrupted"
    if then == "revert":
        undo(tree)
        assert digest(tree) == pristine
    else:
        apply(small_content, tree, store)
        assert state(tree, small_content).state == "applied"
        undo(tree)
        assert digest(tree) == pristine


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
@pytest.mark.parametrize("fault", [_interrupt, _broken_disk])
def test_a_fault_before_that_puts_everything_back(
    verb: str, fault: Callable[[], None], small_content: Content, tree: Path, store: Store, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if verb != "apply":
        apply(small_content, tree, store)
    if verb == "update":
        _newer(small_content)
    before = digest(tree)
    names = {"state folder", "pre folder", "stage", "sync", "journal", "folder", "rename", "unlink", "lock", "end"}
    for step in range(0, 400, 3):
        once = iter([fault])
        at = _At(names, step, lambda: next(once, lambda: None)())  # noqa: B023
        monkeypatch.setattr(steps, "checkpoint", at)
        try:
            undo(tree) if verb == "revert" else apply(small_content, tree, store)
        except KeyboardInterrupt:
            assert fault is _interrupt
        except ForkError as e:
            assert fault is _broken_disk
            assert "Input/output" in (e.found or "")
        else:
            assert step > 20
            return
        assert digest(tree) == before, (verb, step)
    pytest.fail("never came to its end")


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
@pytest.mark.parametrize("moment", ["stage", "sync", "journal", "rename", "unlink"])
def test_an_edit_saved_meanwhile_is_kept(
    verb: str, moment: str, small_content: Content, tree: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (verb, moment) == ("apply", "unlink"):
        pytest.skip("this series deletes nothing")
    if verb != "apply":
        apply(small_content, tree, store)
    victim = tree / "vllm/v1/worker/gpu_worker.py"
    if verb == "update":
        folder = small_content.overlay / VERSION / "vllm/v1/worker/gpu"
        (folder / "kunlun/__init__.py").write_bytes(b"# newer\n")
        (folder / "model_runner_v2.py").unlink()
        victim = tree / "vllm/v1/worker/gpu/model_runner_v2.py"
    before = digest(tree)
    edited = iter([True])

    def save(name: str) -> None:
        if name == moment and next(edited, False):
            victim.write_bytes(b"# mine, saved meanwhile\n")

    monkeypatch.setattr(steps, "checkpoint", save)
    with pytest.raises(ForkError, match="edited while kunlunfork worked") as error:
        undo(tree) if verb == "revert" else apply(small_content, tree, store)
    assert error.value.exit_code == errors.CONFLICT
    assert victim.read_bytes() == b"# mine, saved meanwhile\n"
    after = digest(tree)
    name = victim.relative_to(tree).as_posix()
    assert after.pop(name) != before.pop(name)
    assert after == before, "everything else was put back"
    assert state(tree, small_content).state == ("upstream" if verb == "apply" else "edited")


def test_a_lost_journal_never_costs_the_pre_images(small_content: Content, tree: Path, store: Store) -> None:
    """The stage alone does not prove that nothing was changed: the tree is compared."""
    pristine = digest(tree)
    changed = 0

    def stop(name: str) -> None:
        nonlocal changed
        changed += name == "rename"
        if changed == 4:
            raise SystemExit

    steps.checkpoint, before = stop, steps.checkpoint
    try:
        with pytest.raises(SystemExit):
            apply(small_content, tree, store)
    finally:
        steps.checkpoint = before
    journal = tree / ".kunlunfork/journal.json"
    kept = journal.read_bytes()
    journal.unlink()
    half = digest(tree)
    for work in (lambda: apply(small_content, tree, store), lambda: undo(tree), lambda: state(tree, small_content)):
        with pytest.raises(ForkError, match="lost its journal"):
            work()
    assert digest(tree) == half
    journal.write_bytes(kept)
    undo(tree)
    assert digest(tree) == pristine


@pytest.mark.parametrize("name", ["lock.json", "journal.json"])
@pytest.mark.parametrize("kind", ["giant", "pipe", "folder", "link"])
def test_a_record_that_is_no_file_is_refused(
    name: str, kind: str, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    file = tree / ".kunlunfork" / name
    file.unlink(missing_ok=True)
    if kind == "giant":
        file.touch()
        os.truncate(file, 10 << 40)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(tmp_path / "nothing")
    for work in (lambda: apply(content, tree, store), lambda: undo(tree), lambda: state(tree, content)):
        with pytest.raises(ForkError, match=name):
            work()


_UNREADABLE = [
    "..",
    ".kunlunfork",
    ".kunlunfork/pre",
    ".kunlunfork/lock.json",
    "vllm",
    "vllm/v1",
    "vllm/v1/worker/gpu/kunlun",
]


@pytest.mark.parametrize("name", _UNREADABLE)
def test_what_may_not_be_read_is_told(name: str, content: Content, tree: Path, store: Store) -> None:
    """As another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    apply(content, tree, store)
    for parent in (tree, *tree.parents[:-2]):
        parent.chmod(0o755)
    (tree / name).chmod(0o700 if (tree / name).is_dir() else 0o600)
    verbs: dict[str, Callable[[], object]] = {
        "free": lambda: target.is_fork(tree),
        "status": lambda: state(tree, content),
        "verify": lambda: status.verify(target.of_tree(tree), content, None).problems,
        "apply": lambda: apply(content, tree, store),
        "revert": lambda: undo(tree),
    }
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ends = {}
        try:
            os.setgid(65534)
            os.setuid(65534)
            for verb, work in verbs.items():
                try:
                    ends[verb] = str(work())
                except ForkError as e:
                    ends[verb] = f"{e.message}: {e.found}"
        finally:
            os.write(writer, json.dumps(ends).encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        ends = json.loads(file.read())
    assert set(ends) == set(verbs)
    told = {verb for verb, text in ends.items() if "Permission denied" in text}
    assert told == set(verbs) - {"free"} - ({"status"} if name.endswith("pre") else set())


def test_the_folder_hides_itself_whole_or_not_at_all(content: Content, tree: Path, store: Store) -> None:
    (tree / ".kunlunfork").mkdir()
    (tree / ".kunlunfork/.gitignore.new").write_text("half")
    apply(content, tree, store)
    assert (tree / ".kunlunfork/.gitignore").read_bytes() == b"*\n"
    assert not (tree / ".kunlunfork/.gitignore.new").exists()
    undo(tree)
    assert not (tree / ".kunlunfork").exists()


def test_small_files_are_no_trace_of_the_fork(small_content: Content, tree: Path, store: Store) -> None:
    """An upstream file with the bytes of a small overlay file does not make a killed apply look half done."""
    (tree / "vllm/twin.py").write_bytes(b"# overlay\n")

    def stop(name: str) -> None:
        if name == "journal":
            raise SystemExit

    steps.checkpoint, before = stop, steps.checkpoint
    try:
        with pytest.raises(SystemExit):
            apply(small_content, tree, store)
    finally:
        steps.checkpoint = before
    assert recovery.leftover(tree, tree / ".kunlunfork", None)
    undo(tree)
    assert not (tree / ".kunlunfork").exists()
