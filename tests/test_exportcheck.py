"""What a clone cannot carry is refused, not exported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gitkit
import pytest
from gitkit import Author
from support import VERSION, Upstream

from kunlunfork import content as contents
from kunlunfork import fork, paths
from kunlunfork.content import Content
from kunlunfork.errors import ForkError

STATES = "vllm/v1/worker/gpu/states.py"
FIELDS = "\n\nUpstream-Status: Pending\nRemove-When: never\n"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, content: Content) -> Author:
    return gitkit.author(tmp_path_factory.mktemp("author"), upstream, content)


@pytest.fixture
def me(template: Author, tmp_path: Path) -> Author:
    return gitkit.copy(template, tmp_path)


def _folder_for_a_file(me: Author) -> None:
    (me.tree / STATES).unlink()
    me.write(f"{STATES}/x.py", "X = 1\n")


def _renamed_below_itself(me: Author) -> None:
    data = me.read(STATES)
    (me.tree / STATES).unlink()
    me.write(f"{STATES}/__init__.py", data)


def _file_for_a_folder(me: Author) -> None:
    me.git("rm", "-rq", "vllm/entrypoints/serve")
    me.write("vllm/entrypoints/serve", "X = 1\n")


def _link(me: Author, path: str) -> None:
    (me.tree / path).unlink(missing_ok=True)
    (me.tree / path).symlink_to("/etc/passwd")


REFUSED: dict[str, tuple[Callable[[Author], object], str]] = {
    "the list": (lambda me: me.write("REMOVED", "vllm/x.py\n"), "REMOVED: this is the name of an overlay's own list"),
    "bytecode": (lambda me: me.write("vllm/__pycache__/x.pyc", b"\0"), "vllm/__pycache__/x.pyc: this is what an inter"),
    "records": (lambda me: me.write(".kunlunfork/x", b"\0"), ".kunlunfork/x: this is the name of kunlunfork's own"),
    "a link": (lambda me: _link(me, "vllm/a.txt"), "vllm/a.txt: a symbolic link that leaves the tree: vllm/a.txt -> /"),
    "upstream's file a link": (lambda me: _link(me, STATES), f"{STATES}: a symbolic link that leaves the tree: "),
    "a folder for a file": (_folder_for_a_file, f"{STATES}/x.py: upstream has a file {STATES}, which cannot"),
    "a file below itself": (_renamed_below_itself, f"{STATES}/__init__.py: upstream has a file {STATES}, which cannot"),
    "a file for a folder": (_file_for_a_folder, "vllm/entrypoints/serve: upstream has a folder of that name"),
    "too large": (lambda me: me.write("vllm/x.bin", b"x" * 4000), "vllm/x.bin: 4000 bytes, more than 3000"),
    "upstream's file too large": (lambda me: me.write(STATES, b"# x" * 9000), f"{STATES}: 27000 bytes, more than 3000"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_clone_can_carry_is_refused(me: Author, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, expected = REFUSED[what]
    if "large" in what:
        monkeypatch.setattr("kunlunfork.exportcheck.MAX_BYTES", 3000)
    change(me)
    me.git("add", "--all", "--force", ".")
    me.git("rm", "-q", "--cached", "--ignore-unmatch", paths.to_text(fork.STAMP_PATH))
    me.git("commit", "--quiet", "-m", "Change" + FIELDS)
    with pytest.raises(ForkError, match="the commits have") as error:
        me.plan()
    assert any(detail.startswith(expected) for detail in error.value.details)


def test_a_fork_without_an_overlay_keeps_its_folder(me: Author) -> None:
    others = me.clone.versions()[1:]
    for later in others:
        shutil.rmtree(me.clone.patches / later)
        shutil.rmtree(me.clone.overlay / later)
    found = fork.load(me.clone, VERSION).overlay.files
    me.git("rm", "-q", *(paths.to_text(p) for p in found))
    me.commit("No overlay")
    me.export()
    assert [p.name for p in me.clone.overlay.iterdir()] == [".gitkeep"]
    assert contents.find(me.clone.root).clone
    me.git("revert", "--no-edit", "HEAD")
    me.export()
    assert {p for p in me.changed() if p.split("/")[1] not in others} == {"overlay/.gitkeep"}
