"""Edits in a fork tree without git become a patch, and the tree's record follows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream, digest, undo

from kunlunfork import fork as forks
from kunlunfork import lint, messages, newtree, overlay, plain, status, target
from kunlunfork.content import Content
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.export import Plan
from kunlunfork.progress import Silent
from kunlunfork.store import Base

STATES = "vllm/v1/worker/gpu/states.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
SWITCHES = "vllm/v1/worker/gpu/kunlun/switches.py"


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


def _plan(me: Author, title: str = "Keep the states") -> Plan:
    return plain.plan(me.clone, target.of_tree(me.tree), me.store, _base(me), messages.now(title))


def _make(me: Author, title: str = "Keep the states") -> Plan:
    planned = _plan(me, title)
    plain.carry_out(me.clone, target.of_tree(me.tree), me.store, planned, Silent())
    return planned


def test_edits_become_a_patch_and_the_tree_carries_it(me: Author, upstream: Upstream) -> None:
    assert _plan(me).writes == ()
    fresh = digest(me.tree)
    me.replace(STATES, b"import torch\n", b"import torch\nA = 1\n")
    me.replace(WORKER, b"model_runner_v2 import (", b"model_runner_v2 import (  # noqa")
    me.replace(SWITCHES, b"\n", b"\n# mine\n")
    me.write("vllm/v1/worker/gpu/kunlun/extra.py", "X = 1\n")
    me.write("vllm/__pycache__/x.pyc", b"")
    edited = digest(me.tree)
    _make(me)
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
