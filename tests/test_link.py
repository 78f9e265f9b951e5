"""`apply --link`: the overlay's files in the tree are links into the clone."""

from __future__ import annotations

import shutil
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream, digest, follow, undo

from kunlunfork import fork, make, messages, newtree, plain, status, target
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.store import Base

SWITCHES = "vllm/v1/worker/gpu/kunlun/switches.py"
STAMP = "vllm/v1/worker/gpu/kunlun/_build.py"


@pytest.fixture
def me(tmp_path: Path, upstream: Upstream, content: Content) -> Author:
    return gitkit.author(tmp_path, upstream, content)


def _apply(me: Author, tree: Path, link: bool | None) -> str:
    found = target.of_tree(tree)
    return make.bring_up_to_date(
        me.clone, found, me.store, wanted=VERSION, link=link, dry_run=False, progress=Silent()
    ).action


def _check(me: Author, tree: Path, upstream: Upstream) -> None:
    overlay = fork.load(me.clone, VERSION).overlay
    for path, file in overlay.files.items():
        assert (tree / path.decode()).readlink() == file.source.absolute()
    assert not (tree / STAMP).is_symlink()
    verdict = status.verify(target.of_tree(tree), me.clone, {p: e for p, (e, _) in upstream.files.items()})
    assert (verdict.problems, verdict.others) == ((), ())


@pytest.mark.parametrize("new", [True, False])
def test_edits_are_live(me: Author, upstream: Upstream, tmp_path: Path, new: bool) -> None:
    tree = tmp_path / "linked"
    if new:
        base = me.store.find("sdist", VERSION)
        assert base is not None
        linked = fork.linked(fork.load(me.clone, VERSION), me.clone)
        newtree.create(linked, base, me.store, tree, dry_run=False, progress=Silent())
    else:
        upstream.write(tree)
        assert _apply(me, tree, True) == "applied"
    _check(me, tree, upstream)
    file = tree / SWITCHES
    file.write_bytes(file.read_bytes() + b"# live\n")
    assert me.changed() == {f"overlay/{VERSION}/{SWITCHES}"}
    _check(me, tree, upstream)
    assert _apply(me, tree, None) == "updated", "the stamp names another overlay by now"
    _check(me, tree, upstream)
    assert _apply(me, tree, None) == "unchanged", "linked once, linked until --no-link"
    (me.clone.overlay / VERSION / "vllm/extra.py").write_text("X = 1\n")
    assert _apply(me, tree, None) == "updated"
    _check(me, tree, upstream)
    assert _apply(me, tree, False) == "updated"
    assert not file.is_symlink()
    assert file.read_bytes().endswith(b"# live\n")
    assert _apply(me, tree, True) == "updated"
    undo(tree)
    plain = upstream.write(tmp_path / "plain")
    assert digest(tree) == digest(plain)
    assert me.files()[f"overlay/{VERSION}/{SWITCHES}"].endswith(b"# live\n"), "nothing is written through a link"


def test_what_cannot_be_linked(me: Author, upstream: Upstream, tmp_path: Path) -> None:
    packaged = Content(me.clone.root, clone=False)
    with pytest.raises(ForkError, match="there is none"):
        fork.linked(fork.load(packaged, VERSION), packaged)
    with pytest.raises(ForkError, match="is a git tree"):
        _apply(me, me.tree, True)


def test_a_link_that_was_replaced_is_an_edit(me: Author, upstream: Upstream, tmp_path: Path) -> None:
    tree = upstream.write(tmp_path / "linked")
    _apply(me, tree, True)
    (tree / SWITCHES).unlink()
    (tree / SWITCHES).write_text("mine\n")
    with pytest.raises(ForkError, match="edits"):
        _apply(me, tree, None)
    assert (tree / SWITCHES).read_text() == "mine\n"


def _found(me: Author, tree: Path, clone: Content | None) -> tuple[status.Status, tuple[str, ...]]:
    found = target.of_tree(tree)
    return status.read(found, clone), status.verify(found, clone, None).problems


@pytest.mark.parametrize("gone", [True, False])
def test_a_link_whose_clone_moved_is_told_and_apply_mends_it(
    me: Author, upstream: Upstream, tmp_path: Path, gone: bool
) -> None:
    tree = upstream.write(tmp_path / "linked")
    _apply(me, tree, True)
    old, new = me.clone.root, Content(tmp_path / "moved", clone=True)
    shutil.copytree(old, new.root, symlinks=True)
    lies = old / "overlay" / VERSION / SWITCHES
    if gone:
        shutil.rmtree(old)
    else:
        assert _found(me, tree, new)[1] == (), "links to other bytes of the same content harm nobody"
        lies.write_bytes(b"# another branch\n")
    count = len(fork.load(new, VERSION).overlay.files) if gone else 1
    said = f"{SWITCHES}: links to {lies}, which is {'gone' if gone else 'not the clone' + chr(39) + 's file'}"
    found, problems = _found(me, tree, new)
    assert (found.state, len(found.edits), said in found.edits, problems) == ("edited", count, True, found.edits)
    assert len(_found(me, tree, None)[1]) == (count if gone else 0)
    follow(found.fix, tmp_path, new)
    me.clone = new
    _check(me, tree, upstream)
    assert _found(me, tree, new)[0].state == "applied"


def test_a_link_to_what_became_a_folder_is_told(me: Author, upstream: Upstream, tmp_path: Path) -> None:
    tree = upstream.write(tmp_path / "linked")
    _apply(me, tree, True)
    lies = me.clone.overlay / VERSION / SWITCHES
    lies.unlink()
    lies.mkdir()
    assert _found(me, tree, None)[1] == (f"{SWITCHES}: links to {lies}, which is no file",)


def test_new_patch_of_a_linked_tree_says_how_to_go_on(
    me: Author, upstream: Upstream, tmp_path: Path, base: Base
) -> None:
    """Live edits of the overlay, an edited and a deleted file of upstream's, a replaced link, a new file."""
    tree = upstream.write(tmp_path / "linked")
    _apply(me, tree, True)
    small = me.store.find("sdist", VERSION)
    assert small is not None

    def take(*add: str) -> plain.Taking:
        return plain.plan(me.clone, target.of_tree(tree), me.store, small, messages.now("It's mine"), add)

    live = tree / SWITCHES
    live.write_bytes(live.read_bytes() + b"# live\n")
    assert take().plan.writes == (), "live edits are in the clone already"
    states = tree / "vllm/v1/worker/gpu/states.py"
    states.write_bytes(b"# mine\n" + states.read_bytes())
    (tree / "vllm/v1/worker/gpu/README.md").unlink()
    (tree / "vllm/mine").mkdir()
    (tree / "vllm/mine/new.py").write_text("X = 1\n")
    hook = tree / "vllm/v1/worker/gpu/kunlun/backend.py"
    data = hook.read_bytes() + b"# sed\n"
    hook.unlink()
    hook.write_bytes(data)
    before = me.files()
    with pytest.raises(ForkError, match="are links") as error:
        take("vllm/mine/new.py")
    assert me.files() == before
    fix = error.value.fix
    assert fix is not None
    follow(fix, tmp_path, me.clone)
    overlay = f"overlay/{VERSION}/"
    assert me.changed() == {
        f"patches/{VERSION}/series", f"patches/{VERSION}/it-s-mine.patch", f"{overlay}{SWITCHES}",
        f"{overlay}vllm/v1/worker/gpu/kunlun/backend.py", f"{overlay}vllm/mine/new.py",
    }  # fmt: skip
    assert me.files()[f"{overlay}vllm/v1/worker/gpu/kunlun/backend.py"] == data
    raw = me.patch("it-s-mine.patch")
    assert (b"\n+# mine\n" in raw, b"\n--- a/vllm/v1/worker/gpu/README.md\n+++ /dev/null\n" in raw) == (True, True)
