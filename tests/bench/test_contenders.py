from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchkit import small_cache, small_field
from support import Upstream, digest

from kunlunfork import git
from kunlunfork.bench import contenders
from kunlunfork.bench.contenders import Field
from kunlunfork.bench.measure import Step
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import parse_patch
from kunlunfork.status import verify
from kunlunfork.target import of_tree

# Stands in for quilt, which need not be installed: applies a series the way that quilt finds it.
QUILT = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "--quiltrc - push -a -q" ] || exit 9
for patch in $(cat "$QUILT_PATCHES/series"); do git apply "$QUILT_PATCHES/$patch" || exit 1; done
"""


@pytest.fixture
def field(small_content: Content, upstream: Upstream, tmp_path: Path) -> Field:
    return small_field(small_content, small_cache(small_content, upstream, tmp_path), tmp_path / "scratch")


@pytest.fixture
def quilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "quilt"
    program.parent.mkdir()
    program.write_text(QUILT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("QUILT_PATCHES", "the user's own")
    return program


def _run(steps: tuple[Step, ...], folder: Path) -> None:
    folder.mkdir()
    for step in steps:
        step.before(folder)
        step.run(folder)


def test_all_do_the_same_job(field: Field, quilt: Path, tmp_path: Path) -> None:
    steps = contenders.steps(field, quilt=True)
    first, second = field.scratch / "first", field.scratch / "second"
    _run(steps, first)
    _run(steps, second)
    contenders.check_same(field, first)
    contenders.check_same(field, second)
    trees = [first / contenders.NEW, first / contenders.NEW_INSIDE, first / contenders.UNPACKED / field.top]
    for tree in trees:
        assert verify(of_tree(tree), field.content, None).problems == ()
    assert digest(trees[0]) == digest(trees[1])
    assert not (first / "worktree" / "vllm/v1/worker/gpu/kunlun").exists()
    assert len(git.run(["-C", first / contenders.AM, "log", "--format=%s"]).splitlines()) == 1 + len(field.fork.patches)

    path = sorted(field.fork.patched)[0]
    for tree in (contenders.AM, f"{contenders.QUILT}/{field.top}"):
        file = first / tree / os.fsdecode(path)
        data = file.read_bytes()
        file.write_bytes(data + b"\n")
        with pytest.raises(ForkError, match="not the same") as error:
            contenders.check_same(field, first)
        assert error.value.found == f"{tree} differ from what kunlunfork apply made"
        file.write_bytes(data)


def test_without_quilt(field: Field) -> None:
    names = [s.name for s in contenders.steps(field, quilt=False)]
    assert "quilt" not in names
    assert len(names) == 8


def test_a_contender_that_fails_is_named(field: Field, quilt: Path) -> None:
    quilt.write_text("#!/bin/sh\necho first; echo 'Patch x does not apply' >&2; exit 1\n")
    steps = {s.name: s for s in contenders.steps(field, quilt=True)}
    steps["quilt"].before(field.scratch)
    with pytest.raises(ForkError, match="quilt failed") as error:
        steps["quilt"].run(field.scratch)
    assert error.value.found == "Patch x does not apply"


@pytest.mark.parametrize("head", ["", "From: A B <a@b.invalid>\nSubject: Käse\n\nFrom me\n---\n"], ids=["bare", "own"])
def test_any_patch_becomes_a_mail_that_git_am_takes(head: str, tmp_path: Path) -> None:
    git.run(["init", "-q", tmp_path])
    file = tmp_path / "file"
    file.write_bytes(b"one\r\n")
    git.run(["-C", tmp_path, "add", "file"])
    git.run(["-C", tmp_path, "commit", "-qm", "first"])
    file.write_bytes(b"one\r\nFrom two\r\n")
    diff = git.run(["-C", tmp_path, "diff", "--full-index"])
    git.run(["-C", tmp_path, "checkout", "-q", "file"])
    mail = tmp_path.with_name(f"{tmp_path.name}.mail")
    mail.write_bytes(contenders.mail(parse_patch("a.patch", head.encode() + diff)))
    git.run(["-C", tmp_path, "am", "--quiet", "--keep-cr", mail])
    assert file.read_bytes() == b"one\r\nFrom two\r\n"
    subject = git.run(["-C", tmp_path, "log", "-1", "--format=%s%n%an"]).decode().splitlines()
    assert subject == (["Käse", "A B"] if head else ["a.patch", "kunlunfork"])
