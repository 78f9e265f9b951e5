"""Whose each hunk is, and what becomes of it on a newer mainline."""

from __future__ import annotations

import diffkit
import pytest
from diffkit import Differ
from rebasekit import lines
from support import REPO

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff.report import Parts, Report
from kunlunfork.diff.sides import Request
from kunlunfork.store import Base, Store

FILE = b"vllm/v1/worker/gpu_worker.py"
BASE = lines("a", "b", "c", "d")
PINS = Content(REPO, clone=True).versions()


def edit(data: bytes, *names: str) -> bytes:
    """`data` with one line of each of these functions changed."""
    for name in names:
        old = f"    {name}_3 = x + 3\n".encode()
        assert old in data
        data = data.replace(old, f"    {name}_3 = 'ours'\n".encode())
    return data


def sources(report: Report, path: bytes = FILE) -> list[list[str]]:
    return [[source.name or source.kind for source in hunk] for hunk in report.origins[path].hunks]


def fates(report: Report, path: bytes = FILE) -> list[list[str]]:
    [diff] = [diff for diff in report.ours if diff.path == path]
    return [[f"{fate.patch} {fate.kind} {fate.version}" for fate in hunk] for hunk in report.fates_of(diff)]


@pytest.fixture
def three(differ: Differ) -> Differ:
    """Three patches of one file: `one` edits a and c, `two` edits b, `three` goes over what `one` made in c."""
    world = differ.world
    world.release("1.0", {FILE: BASE})
    world.patch("one", {FILE: edit(BASE, "a", "c")})
    world.patch("two", {FILE: edit(world.now[FILE], "b")})  # type: ignore[arg-type]
    world.patch("three", {FILE: world.now[FILE].replace(b"c_3 = 'ours'\n", b"c_3 = 'ours'\n    more = 1\n")})  # type: ignore[union-attr]
    return differ


def test_each_hunk_is_its_patchs(three: Differ) -> None:
    report = three.report("runner", context=0)
    assert sources(report) == [["one.patch"], ["two.patch"], ["one.patch", "three.patch"]]
    [source, *_] = report.origins[FILE].hunks[0]
    assert (source.subject, source.status, source.remove_when) == ("one", "Pending", "never")


def test_a_hunk_with_context_around_several_changes_names_all(three: Differ) -> None:
    assert sources(three.report("runner", context=20)) == [["one.patch", "two.patch", "three.patch"]]
    shown = three.text("runner", context=20).decode()
    assert "# one.patch: one; Upstream-Status: Pending; Remove-When: never\n" in shown


def test_a_deletion_is_of_the_patch_that_deletes(differ: Differ) -> None:
    differ.world.release("1.0", {FILE: BASE})
    first = BASE.replace(b"    a_1 = x + 1\n", b"")
    differ.world.patch("one", {FILE: first})
    differ.world.patch("two", {FILE: first.replace(b"    c_1 = x + 1\n    c_2 = x + 2\n", b"    c_9 = 9\n")})
    assert sources(differ.report("runner", context=0)) == [["one.patch"], ["two.patch"]]


def test_a_line_that_a_later_patch_takes_back_is_nobodys(differ: Differ) -> None:
    differ.world.release("1.0", {FILE: BASE})
    differ.world.patch("one", {FILE: edit(BASE, "a", "c")})
    differ.world.patch("two", {FILE: edit(BASE, "c")})
    report = differ.report("runner", context=0)
    assert sources(report) == [["one.patch"]]


def test_through_a_rename(differ: Differ) -> None:
    new = b"vllm/v1/worker/other.py"
    differ.world.release("1.0", {FILE: BASE})
    differ.world.patch("one", {FILE: edit(BASE, "a")})
    differ.world.patch("two", {FILE: None, new: edit(BASE, "a", "d")})
    report = differ.report("vllm/v1/worker", context=0)
    assert sources(report, new) == [["one.patch"], ["two.patch"]]


def test_overlay_stamp_and_edits(differ: Differ) -> None:
    differ.world.release("1.0", {FILE: BASE})
    differ.world.patch("one", {FILE: edit(BASE, "a")})
    folder = b"vllm/v1/worker/gpu/kunlun/"
    tree = differ.folder("tree")
    diffkit.git_apply(tree, differ.text(form="patch"))
    (tree / FILE.decode()).write_bytes(edit(BASE, "a", "c"))
    (tree / "vllm/mine.py").write_bytes(b"x = 1\n")
    (tree / folder.decode() / "__init__.py").write_bytes(b"# overlay\n# mine\n")
    report = differ.report(context=0, tree=tree)
    assert sources(report) == [["one.patch"], ["edit"]]
    assert sources(report, b"vllm/mine.py") == [["edit"]]
    assert sources(report, folder + b"_build.py") == [["stamp"]]
    assert sources(report, folder + b"__init__.py") == [["1.0", "edit"]]


def test_what_upstream_took_is_droppable_with_the_proof(three: Differ) -> None:
    """1.1 has the edit of a, 1.2 changes b where `two` does; c stays as it was."""
    three.world.release("1.1", {FILE: b"import os\n" + edit(BASE, "a")})
    three.world.release("1.2", {FILE: b"import os\n" + edit(BASE, "a").replace(b"b_3 = x + 3", b"b_3 = 'theirs'")})
    report = three.report("runner", context=0, against="1.2")
    assert fates(report) == [
        ["one.patch upstreamed 1.1"],
        ["two.patch conflict 1.2"],
        ["one.patch unchanged 1.2", "three.patch unchanged 1.2"],
    ]
    [dropped] = [fate for fate in report.fates if fate.droppable]
    line = (b"import os\n" + edit(BASE, "a")).split(b"\n").index(b"    a_3 = 'ours'") + 1
    assert dropped.proof == (f"vllm/v1/worker/gpu_worker.py:{line} in vLLM 1.1 has the same line",)
    [still] = [f for f in report.fates if f.patch == "one.patch" and not f.droppable]
    assert still.new_line == still.line + 1, "upstream's new first line"
    shown = three.text("runner", context=0, against="1.2").decode()
    assert "# droppable: one.patch, line 5: vLLM 1.1 has it (" in shown
    assert "# needs a person: two.patch, line 14: conflict in vLLM 1.2 (vllm/v1/worker/gpu_worker.py: content" in shown


def test_a_patch_that_upstream_has_whole(differ: Differ) -> None:
    differ.world.release("1.0", {FILE: BASE})
    differ.world.patch("gone", {FILE: BASE.replace(b"    a_1 = x + 1\n", b"")})
    differ.world.release("1.1", {FILE: BASE.replace(b"    a_1 = x + 1\n", b"")})
    differ.world.release("1.2", {FILE: BASE})
    report = differ.report("runner", against="1.2")
    [fate] = report.fates
    assert (fate.kind, fate.version) == ("upstreamed", "1.1")
    assert fate.proof == ("vllm/v1/worker/gpu_worker.py in vLLM 1.1 has the line no more",)


def test_patches_of_other_files_are_not_carried(differ: Differ) -> None:
    other = b"vllm/other.py"
    differ.world.release("1.0", {FILE: BASE, other: BASE})
    differ.world.patch("one", {FILE: edit(BASE, "a")})
    differ.world.patch("two", {other: edit(BASE, "a")})
    differ.world.release("1.1", {FILE: BASE, other: BASE})
    assert {fate.patch for fate in differ.report("runner", against="1.1").fates} == {"one.patch"}
    assert {fate.patch for fate in differ.report(against="1.1").fates} == {"one.patch", "two.patch"}


@pytest.mark.parametrize("pin", PINS)
def test_every_hunk_of_the_real_fork_has_a_source(
    pin: str, bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request((), version=pin))
    patches = {f"patches/{s.name}" for o in report.origins.values() for s in o.whole if s.kind == "patch"}
    assert len(patches) == len((content.patches / pin / "series").read_text().split())
    for diff in report.ours:
        origin = report.origins[diff.path]
        assert origin.whole, diff.path
        assert len(origin.hunks) == len(diff.section.hunks)
        assert all(origin.hunks), diff.path
        if origin.whole[0].kind == "overlay":
            assert (content.overlay / origin.whole[0].name / diff.path.decode()).is_file()


def test_a_carried_patch_of_the_real_fork(
    bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    """gpu-worker-runner.patch is carried by hand in the pin of 0.27.1: its hunk stands where `diff` says it would."""
    report = diffkit.report(content, store, user_cache, Request(("runner",), version="0.25.1", against="0.27.1"))
    [fate] = [f for f in report.fates if f.patch == "gpu-worker-runner.patch"]
    there = diffkit.report(content, store, user_cache, Request(("runner",), version="0.27.1"), Parts(0))
    [diff] = [d for d in there.ours if d.path == FILE]
    assert fate.new_line == diff.section.hunks[0].old_start


def test_a_conflict_that_the_clone_has_resolved_before_is_none(differ: Differ) -> None:
    world = differ.world
    world.release("1.0", {FILE: BASE})
    world.patch("one", {FILE: edit(BASE, "a")})
    world.release("1.1", {FILE: BASE.replace(b"a_3 = x + 3", b"a_3 = 'theirs'")})
    assert fates(differ.report("runner", context=0, against="1.1")) == [["one.patch conflict 1.1"]]
    world.begin("1.1")
    world.work(FILE).write_bytes(BASE.replace(b"a_3 = x + 3", b"a_3 = 'both'"))
    world.driver.go_on(world.session)
    assert fates(differ.report("runner", context=0, version="1.0", against="1.1")) == [["one.patch unchanged 1.1"]]


@pytest.mark.parametrize(
    ("ours", "theirs", "meets"),
    [("a_1", "a_1", True), ("a_1", "a_2", True), ("a_2", "a_1", True), ("a_1", "a_3", False), ("a_3", "a_1", False)],
)
def test_changes_side_by_side_meet(differ: Differ, ours: str, theirs: str, meets: bool) -> None:
    def changed(name: str, text: bytes) -> bytes:
        return BASE.replace(f"{name} = x + {name[-1]}".encode(), f"{name} = ".encode() + text)

    differ.world.release("1.0", {FILE: BASE})
    differ.world.patch("one", {FILE: changed(ours, b"'ours'")})
    differ.world.release("1.1", {FILE: changed(theirs, b"'theirs'")})
    [met] = differ.report("runner", against="1.1").met
    assert bool(met.hunks) == meets
