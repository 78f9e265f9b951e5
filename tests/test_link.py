"""`apply --link`: the overlay's files in the tree are links into the clone."""

from __future__ import annotations

from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream, digest, undo

from kunlunfork import fork, make, newtree, status, target
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent

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
