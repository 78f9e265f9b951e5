"""Edits in a fork tree without git become a patch, and the tree's record follows."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream, apply, digest, undo

from kunlunfork import exportfiles, lint, messages, newtree, overlay, paths, plain, status, target
from kunlunfork import fork as forks
from kunlunfork import journal as journals
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.export import Plan
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store

STATES = "vllm/v1/worker/gpu/states.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
SWITCHES = "vllm/v1/worker/gpu/kunlun/switches.py"
BACKEND = "vllm/v1/worker/gpu/kunlun/backend.py"
EXTRA = "vllm/v1/worker/gpu/kunlun/extra.py"


@pytest.fixture
def me(tmp_path: Path, upstream: Upstream, content: Content, monkeypatch: pytest.MonkeyPatch) -> Author:
    made = gitkit.author(tmp_path, upstream, content)
    made.tree = tmp_path / "plain"
    newtree.create(
        forks.load(made.clone, VERSION), _base(made), made.store, made.tree, dry_run=False, progress=Silent()
    )
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, made.env[name])
    return made


def _base(me: Author) -> Base:
    found = me.store.find("sdist", VERSION)
    assert found is not None
    return found


def _take(me: Author, title: str = "Keep the states", *add: str) -> plain.Taking:
    return plain.plan(me.clone, target.of_tree(me.tree), me.store, _base(me), messages.now(title), add)


def _plan(me: Author, title: str = "Keep the states", *add: str) -> Plan:
    return _take(me, title, *add).plan


def _make(me: Author, title: str = "Keep the states", *add: str) -> None:
    plain.carry_out(me.clone, target.of_tree(me.tree), me.store, _take(me, title, *add), Silent())


def test_edits_become_a_patch_and_the_tree_carries_it(me: Author, upstream: Upstream) -> None:
    assert _plan(me).writes == ()
    fresh = digest(me.tree)
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.replace(SWITCHES, b"\n", b"\n# mine\n")
    me.write("vllm/v1/worker/gpu/kunlun/extra.py", "X = 1\n")
    me.write("vllm/__pycache__/x.pyc", b"")
    me.write("vllm/NOTES.txt", "mine\n")
    extra = "vllm/v1/worker/gpu/kunlun/extra.py"
    assert [w for w in _plan(me).warnings if "not taken" in w] == [
        f"new files, not taken: vllm/NOTES.txt, {extra} (--add PATH takes one into the overlay)"
    ]
    edited = digest(me.tree)
    _make(me, "Keep the states", extra)
    assert me.changed() == {
        f"patches/{VERSION}/keep-the-states.patch", f"patches/{VERSION}/series",
        f"overlay/{VERSION}/{SWITCHES}", f"overlay/{VERSION}/vllm/v1/worker/gpu/kunlun/extra.py",
    }  # fmt: skip
    raw = me.patch("keep-the-states.patch").decode()
    assert raw.startswith("From: Zoë Ångström <zoe@example.org>\n")
    assert f"Touches: {STATES}::\n" in raw
    files = {p: (f.entry, f.data, f.source) for p, f in overlay.resolve(me.clone.overlay, VERSION).files.items()}
    assert lint.lint(me.clone.patches / VERSION, files, upstream.files.get) == ()
    now = digest(me.tree)
    stamp = "vllm/v1/worker/gpu/kunlun/_build.py"
    ours = {name for name in {*now, *edited} if now.get(name) != edited.get(name)}
    assert {name for name in ours if not name.startswith(".kunlunfork")} == {stamp}
    found = status.read(target.of_tree(me.tree), me.clone)
    assert (found.state, found.current) == ("applied", True)
    assert _plan(me).writes == (), "nothing is left to take"
    undo(me.tree)
    assert me.read("vllm/NOTES.txt") == b"mine\n"
    assert not (me.tree / "vllm/v1/worker/gpu/kunlun").exists()
    assert me.read(STATES) == upstream.files[STATES.encode()][1]
    newtree.create(
        forks.load(me.clone, VERSION), _base(me), me.store, me.tree.with_name("again"), dry_run=False, progress=Silent()
    )
    again = digest(me.tree.with_name("again"))
    names = {name for name in fresh if not name.startswith(".kunlunfork") and name != stamp}
    assert {n: again[n] for n in names} == {n: edited[n] for n in names}


def test_another_state_of_the_clone_is_refused(me: Author) -> None:
    file = me.clone.overlay / VERSION / SWITCHES
    file.write_bytes(file.read_bytes() + b"# newer\n")
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    with pytest.raises(ForkError, match="another state") as error:
        _plan(me)
    assert error.value.exit_code == CONFLICT


def test_a_deletion_and_a_mode(me: Author) -> None:
    (me.tree / STATES).unlink()
    (me.tree / WORKER).chmod(0o755)
    _make(me, "Without states")
    raw = me.patch("without-states.patch")
    assert b"\ndeleted file mode 100644\n" in raw
    assert b"\nold mode 100644\nnew mode 100755\n" in raw
    assert status.read(target.of_tree(me.tree), me.clone).state == "applied"


def _cli(me: Author, *args: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**me.env, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "KUNLUNFORK_CACHE": os.environ["KUNLUNFORK_CACHE"]}
    return subprocess.run(
        [sys.executable, "-m", "kunlunfork", *args], env=env, cwd=me.tree, capture_output=True, text=True, check=False
    )


def test_a_git_tree_and_no_fork_tree_are_refused(me: Author, user_cache: object, tmp_path: Path) -> None:
    done = _cli(me, "new-patch", "--title", "x", "--repo", me.clone.root, tmp_path / "tree")
    assert (done.returncode, "git commit" in done.stderr) == (1, True)
    undo(me.tree)
    done = _cli(me, "new-patch", "--title", "x", "--repo", me.clone.root, me.tree)
    assert (done.returncode, "carries no fork" in done.stderr) == (1, True)


def _chmod(me: Author, path: str) -> None:
    (me.tree / path).chmod((me.tree / path).stat().st_mode ^ 0o111)


def _content(me: Author, path: str) -> None:
    me.write(path, b"# mine\n" + me.read(path))


def _both(me: Author, path: str) -> None:
    _content(me, path)
    _chmod(me, path)


def _delete(me: Author, path: str) -> None:
    (me.tree / path).unlink()


def _link(me: Author, path: str) -> None:
    _delete(me, path)
    (me.tree / path).symlink_to("__init__.py")


def _rename(me: Author, path: str) -> None:
    (me.tree / path).rename(me.tree / MOVED)


MOVED = "vllm/moved/states.py"


_CASES = [
    *((edit, path, False) for edit in (_content, _chmod, _both, _delete, _link) for path in (STATES, WORKER)),
    *((edit, STATES, True) for edit in (_content, _chmod, _both, _delete, _link)),
    (_both, "setup.py", False), (_delete, "setup.py", False),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "path", "killed"), _CASES)
def test_revert_gives_the_release(
    me: Author, upstream: Upstream, edit: Callable[[Author, str], None], path: str, killed: bool
) -> None:
    released = digest(upstream.write(me.tree.with_name("released")))
    if path == "setup.py":
        (me.tree / path).chmod(0o640)
        released[path] = (0o640, released[path][1])
    edit(me, path)
    if path == "setup.py" and edit in (_delete, _link):
        released[path] = (0o644, released[path][1])  # what it was, nobody knows any more
    if killed:
        taking = _take(me)
        exportfiles.write(me.clone.root, taking.plan.writes)
        with pytest.raises(ForkError, match="another state") as error:
            _take(me)
        assert error.value.fix == f"kunlunfork apply --in-place '{me.tree}'"
        apply(me.clone, me.tree, me.store)
    else:
        _make(me)
    edited = digest(me.tree)
    verdict = status.verify(target.of_tree(me.tree), me.clone, {p: e for p, (e, _) in upstream.files.items()})
    assert (verdict.status.state, verdict.status.current, verdict.problems, verdict.others) == ("applied", True, (), ())
    assert _plan(me).writes == ()
    undo(me.tree)
    assert digest(me.tree) == released
    apply(me.clone, me.tree, me.store)
    assert {n: v[1] for n, v in digest(me.tree).items()} == {n: v[1] for n, v in edited.items()}
    assert (me.tree / path).is_symlink() == (edit is _link)


def test_revert_after_a_renamed_and_a_new_file(me: Author, upstream: Upstream) -> None:
    released = digest(upstream.write(me.tree.with_name("released")))
    me.write(MOVED, "")
    me.write("vllm/mine/deep/x.py", "X = 1\n")
    me.write("vllm/mine/deep/y.py", "Y = 1\n")
    _rename(me, STATES)
    _make(me, "Move", MOVED, "vllm/mine/deep/x.py")
    assert b"\ndeleted file mode 100644\n" in me.patch("move.patch")
    assert f"overlay/{VERSION}/{MOVED}" in me.files()
    undo(me.tree)
    assert me.read("vllm/mine/deep/y.py") == b"Y = 1\n"
    (me.tree / "vllm/mine/deep/y.py").unlink()
    (me.tree / "vllm/mine/deep").rmdir()
    (me.tree / "vllm/mine").rmdir()
    assert digest(me.tree) == released


def test_the_folder_of_a_new_file_goes_with_it(me: Author, upstream: Upstream) -> None:
    released = digest(upstream.write(me.tree.with_name("released")))
    me.write("vllm/mine/deep/x.py", "X = 1\n")
    _make(me, "Mine", "vllm/mine/deep/x.py")
    undo(me.tree)
    assert digest(me.tree) == released


_NOT_NEW = (
    "vllm/none.py", "vllm", STATES, SWITCHES, "../x.py", ".git/x", "vllm/pipe", "/etc/passwd", "", "REMOVED",
    "vllm/.gitignore", "vllm/__pycache__/x.pyc",
)  # fmt: skip


def test_what_is_no_new_file_is_refused(me: Author) -> None:
    os.mkfifo(me.tree / "vllm/pipe")
    for name in ("REMOVED", "vllm/.gitignore", "vllm/__pycache__/x.pyc"):
        me.write(name, "*\n")
    for name in _NOT_NEW:
        with pytest.raises(ForkError):
            _take(me, "x", name)


def _outside(me: Author) -> None:
    _delete(me, STATES)
    (me.tree / STATES).symlink_to("/etc/passwd")


def _executable(me: Author) -> None:
    _both(me, SWITCHES)


def _folder(me: Author) -> None:
    _delete(me, STATES)
    (me.tree / STATES).mkdir()


def _linked_folder(me: Author) -> None:
    (me.tree / "vllm/v1").rename(me.tree / "elsewhere")
    (me.tree / "vllm/v1").symlink_to("../elsewhere")


def _large(me: Author) -> None:
    os.truncate(me.tree / STATES, paths.MAX_BYTES + 1)


@pytest.mark.parametrize("edit", [_outside, _executable, _folder, _linked_folder, _large])
def test_what_the_fork_cannot_hold_is_refused_before_anything_is_written(
    me: Author, edit: Callable[[Author], None]
) -> None:
    _content(me, WORKER)
    edit(me)
    with pytest.raises(ForkError):
        _make(me)
    assert me.changed() == set()


def test_an_edit_meanwhile_is_refused_before_anything_is_written(me: Author) -> None:
    _content(me, STATES)
    taking = _take(me)
    _content(me, STATES)
    with pytest.raises(ForkError):
        plain.carry_out(me.clone, target.of_tree(me.tree), me.store, taking, Silent())
    assert me.changed() == set()


def test_what_apply_would_refuse_is_refused_before_anything_is_written(
    me: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: the clone as it would be is tried on the tree."""
    _content(me, STATES)
    monkeypatch.setattr(paths, "check_symlink", lambda *_, **__: None)
    taking = _take(me)
    bad = exportfiles.Write(Path(f"overlay/{VERSION}/{WORKER}"), b"", None)
    broken = replace(taking, plan=replace(taking.plan, writes=(*taking.plan.writes, bad)))
    with pytest.raises(ForkError, match="edits files that the overlay ships"):
        plain.carry_out(me.clone, target.of_tree(me.tree), me.store, broken, Silent())
    assert me.changed() == set()


def test_a_half_changed_tree_is_refused(me: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "read", lambda _: object())
    with pytest.raises(ForkError, match="half changed"):
        _take(me)


@pytest.mark.parametrize("installer", [False, True])
def test_a_wheel_and_an_installed_vllm_are_refused(
    tmp_path: Path, upstream: Upstream, content: Content, store: Store, installer: bool
) -> None:
    tree = upstream.write(tmp_path / "wheel")
    info = tree / f"vllm-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: vllm\nVersion: {VERSION}\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")
    if installer:
        (info / "INSTALLER").write_text("pip\n")
    apply(content, tree, store)
    with pytest.raises(ForkError, match="not a source tree") as error:
        plain.version(target.of_tree(tree))
    assert error.value.fix is not None and f"kunlunfork apply --vllm {VERSION} " in error.value.fix


def test_a_checkout_whose_release_is_not_known_is_refused(
    me: Author, user_cache: Cache, content: Content, base: Base
) -> None:
    settings = Settings(user_cache, None, True, Silent())
    pin = content.pin(VERSION)
    store = Store(user_cache.store)
    assert plain.base_of(target.of_tree(me.tree), pin, store, settings) == base
    (me.tree / "PKG-INFO").unlink()
    with pytest.raises(ForkError, match="not a source tree"):
        plain.base_of(target.of_tree(me.tree), pin, store, settings)


@pytest.mark.parametrize("title", ["", " ", "fixup! Keep", "amend! x", "squash!x", "a\x1b[2Jb"])
def test_a_title_that_names_no_patch_is_wrong_usage(me: Author, title: str) -> None:
    done = _cli(me, "new-patch", "--title", title, "--repo", me.clone.root, me.tree)
    assert (done.returncode, "--title" in done.stderr) == (2, True)


def test_a_killed_new_patch_is_ended_by_the_next(me: Author, upstream: Upstream) -> None:
    """Whatever of it was written: the same command, or the one that it names, ends with the same clone and tree."""
    fresh = {path: paths.read_entry(me.tree, path) for path in forks.load(me.clone, VERSION).touched}
    lock = (me.tree / ".kunlunfork/lock.json").read_bytes()
    for path in (STATES, WORKER, SWITCHES):
        _content(me, path)
    _delete(me, BACKEND)
    me.write(EXTRA, "X = 1\n")
    taking = _take(me, "Mine", EXTRA)
    writes = exportfiles.in_order(taking.plan.writes)
    assert len(writes) == 5
    wanted: dict[str, bytes] | None = None
    for count in reversed(range(len(writes) + 1)):
        exportfiles.write(me.clone.root, writes[:count])
        try:
            _make(me, "Mine", EXTRA)
        except ForkError as e:
            assert e.fix == f"kunlunfork apply --in-place '{me.tree}'"
            assert count >= len(writes) - 1
            apply(me.clone, me.tree, me.store)
            if count < len(writes):  # the deletion, which comes last
                _delete(me, BACKEND)
                _make(me, "Mine")
        done = status.read(target.of_tree(me.tree), me.clone)
        assert (done.state, done.current) == ("applied", True)
        have = {name: re.sub(rb"(?m)^Date: .*", b"", raw) for name, raw in me.files().items()}
        wanted = wanted or have
        assert have == wanted, count
        for name in me.changed():
            data = me.start.get(name)
            (me.clone.root / name).write_bytes(data) if data is not None else (me.clone.root / name).unlink()
        assert me.changed() == set()
        (me.tree / ".kunlunfork/lock.json").write_bytes(lock)
        stamp = fresh[forks.STAMP_PATH]
        assert stamp is not None
        me.write(os.fsdecode(forks.STAMP_PATH), stamp[1])
        assert not (me.tree / BACKEND).exists()


def test_no_space_to_try_the_patch_is_told(me: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    _content(me, STATES)
    taking = _take(me)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(ForkError, match="cannot be copied"):
        plain.carry_out(me.clone, target.of_tree(me.tree), me.store, taking, Silent())
    assert me.changed() == set()


def test_permissions_of_its_own_are_kept_by_a_newer_series(me: Author, upstream: Upstream) -> None:
    """A checkout has what modes it has, and a patch that says nothing of the mode leaves it."""
    other = me.tree.with_name("other")
    shutil.copytree(me.tree, other, symlinks=True)
    (other / STATES).chmod(0o755)
    _content(me, STATES)
    _make(me)
    assert apply(me.clone, other, me.store).action == "updated"
    assert digest(other)[STATES] == (0o755, paths.blob_id(me.read(STATES)))
    undo(other)
    assert digest(other)[STATES] == (0o755, upstream.files[STATES.encode()][0].blob)
