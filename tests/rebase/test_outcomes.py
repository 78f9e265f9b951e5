"""What becomes of each patch and hunk: real git, small releases."""

from __future__ import annotations

import re

import pytest
from rebasekit import World, lines

from kunlunfork import git
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK
from kunlunfork.rebase import outcome
from kunlunfork.rebase.report import Request
from kunlunfork.rebase.session import Session

A = b"vllm/a.py"
BASE = lines("one", "two", "three", count=12)


def edited(data: bytes = BASE, old: bytes = b"two_6 = x + 6", new: bytes = b"two_6 = x - 6") -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def hunks(found: outcome.Outcome) -> list[tuple[int, int | None, str]]:
    return [(h.line, h.new_line, h.kind) for h in found.hunks]


def test_unchanged(world: World) -> None:
    world.release("1.0", {A: BASE})
    raw = world.patch("p", {A: edited()})
    world.release("1.1", {A: BASE, b"vllm/b.py": b"other = 1\n"})
    found = world.one()
    assert (found.kind, hunks(found)) == (outcome.UNCHANGED, [(23, 23, "unchanged")])
    world.begin()
    assert (world.clone.patches / "1.1" / "p.patch").read_bytes() == raw


def test_moved(world: World) -> None:
    world.release("1.0", {A: BASE})
    raw = world.patch("p", {A: edited()})
    world.release("1.1", {A: b"import os\n\n\n" + BASE})
    found = world.one()
    assert (found.kind, hunks(found)) == (outcome.MOVED, [(23, 26, "moved")])
    world.begin()
    new = (world.clone.patches / "1.1" / "p.patch").read_bytes()
    assert new.partition(b"diff --git")[0] == raw.partition(b"Why.")[0].replace(
        b"never\n\n", b"never\nTouches: vllm/a.py::two\n\nWhy.\n---\n"
    ), "the head is kept, and what it touches computed"
    assert world.rebased()[A] == (REGULAR, b"import os\n\n\n" + edited())


def test_merged_with_what_upstream_did_beside_it(world: World) -> None:
    """Two hunks, of which upstream made one wider: the lines are merged, and said to be."""
    world.release("1.0", {A: BASE})
    world.patch("p", {A: BASE.replace(b"two_6 = x + 6\n    two_7 = x + 7", b"two_6 = x - 6\n    two_7 = x - 7")})
    world.release("1.1", {A: BASE.replace(b"two_7 = x + 7", b"two_7 = x - 7")})
    assert world.one().kind == outcome.CONFLICT, "git takes no half of a change of neighbouring lines"
    world.release("1.2", {A: BASE.replace(b"two_6 = x + 6\n    two_7 = x + 7", b"two_6 = x - 6\n    two_7 = x - 7")})
    assert world.one("1.2", leap=True).kind == outcome.UPSTREAMED


def test_upstreamed_is_dropped_with_the_proof(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: edited()})
    world.patch("q", {A: edited(edited(), b"one_6 = x + 6", b"one_6 = x - 6")})
    world.release("1.1", {A: b"import os\n" + edited()})
    first, second = world.look().run.outcomes
    assert (first.kind, second.kind) == (outcome.UPSTREAMED, outcome.MOVED)
    blob = world.store.entries(world.bases["1.1"].tree)[A].blob
    assert first.proof == (f"vllm/a.py: with the patch as vLLM 1.1 has it (blob {blob[:12]})",)
    world.begin()
    assert (world.clone.patches / "1.1" / "series").read_text().splitlines() == [
        "q.patch", "# left out by rebase: p.patch: upstream has it in 1.1",
    ], "the comment above a name goes with it"  # fmt: skip
    assert not (world.clone.patches / "1.1" / "p.patch").exists()


def test_an_insertion_that_upstream_has_is_not_made_twice(world: World) -> None:
    """Case 3: context matching inserts it once more and says nothing."""
    inserted = BASE.replace(b"    two_6 = x + 6\n", b"    two_6 = x + 6\n    hook(x)\n")
    world.release("1.0", {A: BASE})
    world.patch("p", {A: inserted}, "-U1")
    world.release("1.1", {A: inserted})
    assert world.one().kind == outcome.UPSTREAMED


def test_partly_upstreamed(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: edited(edited(), b"one_2 = x + 2", b"one_2 = x - 2")})
    world.release("1.1", {A: edited()})
    found = world.one()
    assert (found.kind, hunks(found)) == (outcome.PARTLY, [(4, 4, "unchanged"), (23, None, "upstreamed")])
    world.begin()
    raw = (world.clone.patches / "1.1" / "p.patch").read_bytes()
    assert raw.count(b"\n@@ ") == 1
    assert b"Touches: vllm/a.py::one\n" in raw
    assert b"two_6" not in raw


def test_part_of_a_hunk_upstreamed(world: World) -> None:
    """Of a new function upstream took two lines: what is left is the patch."""
    world.release("1.0", {b"doc.txt": b"a\nb\nc\nd\ne\nf\ng\n"})
    world.patch("p", {b"doc.txt": b"a\nb\nc\nX\nd\ne\nf\nY\ng\n"})
    world.release("1.1", {b"doc.txt": b"a\nb\nc\nX\nd\ne\nf\ng\n"})
    found = world.one()
    assert (found.kind, sorted(k for *_, k in hunks(found))) == (outcome.PARTLY, ["moved", "upstreamed"])


def test_a_bad_patch_hides_no_other(world: World) -> None:
    world.release("1.0", {A: BASE, b"vllm/b.py": BASE, b"vllm/c.py": BASE})
    world.patch("first", {b"vllm/b.py": edited()})
    world.patch("bad", {A: edited()})
    world.patch("last", {b"vllm/c.py": edited()})
    world.patch("bad-too", {b"vllm/c.py": edited(edited(), b"one_2 = x + 2", b"one_2 = 2")})
    files = {A: edited(new=b"two_6 = [x]"), b"vllm/b.py": BASE}
    world.release("1.1", {**files, b"vllm/c.py": b"import os\n" + BASE.replace(b"one_2 = x + 2", b"one_2 = (x,)")})
    world.release("1.2", {**files, b"vllm/c.py": b"import os, sys\n" + BASE.replace(b"one_2 = x + 2", b"one_2 = (x,)")})
    report = world.look("1.2")
    assert [(o.patch, o.version, o.kind) for o in report.run.outcomes] == [
        ("first.patch", "1.1", "unchanged"), ("bad.patch", "1.1", "conflict"),
        ("last.patch", "1.1", "moved"), ("bad-too.patch", "1.1", "conflict"),
        ("first.patch", "1.2", "unchanged"), ("last.patch", "1.2", "unchanged"),
    ]  # fmt: skip
    assert report.run.stop is not None
    assert report.run.stop.change.name == "bad.patch"


def test_modes_links_empty_files_and_odd_names(world: World) -> None:
    """Cases 8-12 and 5a: bytes, names and modes come through a release that moves everything around them."""
    crlf = BASE.replace(b"\n", b"\r\n")
    latin = b"# \xe4\n" + BASE.replace(b"one", b"eins")
    files = {
        b"run.sh": b"#!/bin/sh\n", b"link": (SYMLINK, b"run.sh"), b'a dir/f \xc3\xa9".txt': b"1\n2\n3\n4\n5\n6\n",
        b"p q.txt": b"1\n2\n3\n4\n5\n6\n", b"crlf.txt": crlf, b"latin.txt": latin, b"end.txt": b"1\n2\n3\n4\n5\n6",
    }  # fmt: skip
    world.release("1.0", files)
    world.patch("modes", {b"run.sh": (EXECUTABLE, b"#!/bin/sh\n"), b"link": (SYMLINK, b"p q.txt"), b"empty": b""})
    world.patch(
        "text",
        {
            b'a dir/f \xc3\xa9".txt': b"1\n2\n3\n4\nfive\n6\n", b"p q.txt": b"1\n2\n3\n4\nfive\n6\n",
            b"crlf.txt": edited(crlf), b"latin.txt": edited(latin), b"end.txt": b"1\n2\n3\n4\n5\nsix",
        },
    )  # fmt: skip
    top = {path: b"0\n" + data for path, data in files.items() if path.endswith(b"txt") and isinstance(data, bytes)}
    world.release("1.1", {**files, **top, b"crlf.txt": b"0\r\n" + crlf, b"run.sh": b"#!/bin/bash\n"})
    report = world.begin()
    assert [o.kind for o in report.run.outcomes] == ["unchanged", "moved"]
    made = world.rebased()
    assert made[b"run.sh"] == (EXECUTABLE, b"#!/bin/bash\n")
    assert made[b"link"] == (SYMLINK, b"p q.txt")
    assert made[b"empty"] == (REGULAR, b"")
    assert made[b'a dir/f \xc3\xa9".txt'] == (REGULAR, b"0\n1\n2\n3\n4\nfive\n6\n")
    assert made[b"crlf.txt"] == (REGULAR, b"0\r\n" + edited(crlf))
    assert made[b"latin.txt"] == (REGULAR, b"0\n" + edited(latin))
    assert made[b"end.txt"] == (REGULAR, b"0\n1\n2\n3\n4\n5\nsix")


@pytest.mark.parametrize(
    "attributes", [b"* text eol=crlf\n", b"*.py ident\n", b"* merge=union\n", b"* -merge\n", b"* binary\n"]
)
def test_attributes_of_the_release_change_nothing(world: World, attributes: bytes) -> None:
    """Case 27, and the drivers that would merge in another way."""
    world.release("1.0", {A: BASE, b".gitattributes": attributes})
    world.patch("p", {A: edited()})
    world.release("1.1", {A: b"import os\n" + BASE, b".gitattributes": attributes})
    assert world.begin().run.outcomes[0].kind == outcome.MOVED
    assert world.rebased()[A] == (REGULAR, b"import os\n" + edited())
    world.release("1.2", {A: edited(new=b"two_6 = []"), b".gitattributes": attributes})
    assert world.look("1.2", start="1.0", leap=True).run.outcomes[0].kind == outcome.CONFLICT


def test_the_users_git_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 20."""
    for number, (key, value) in enumerate([("merge.renames", "false"), ("diff.noprefix", "true"),
                                            ("color.ui", "always"), ("merge.conflictStyle", "zdiff3")]):  # fmt: skip
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "4")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    world.release("1.0", {A: BASE})
    world.patch("p", {A: edited()})
    world.release("1.1", {A: b"import os\n" + BASE})
    world.begin()
    assert world.rebased()[A] == (REGULAR, b"import os\n" + edited())


def test_short_blob_ids_and_a_file_that_comes_twice(world: World) -> None:
    """Cases 15, 22 and 28: a foreign series, in its own words."""
    world.release("1.0", {A: BASE})
    world.pair.load({A: BASE}, {A: edited()})
    once = world.pair.diff()
    world.pair.load({A: edited()}, {A: edited(edited(), b"one_2 = x + 2", b"one_2 = 2")})
    twice = world.pair.diff()
    short = re.sub(rb"index ([0-9a-f]{10})[0-9a-f]{30}\.\.([0-9a-f]{10})[0-9a-f]{30}", rb"index \1..\2", once + twice)
    other = world.folder / "other"
    other.mkdir()
    (other / "series").write_text("p.patch\n")
    (other / "p.patch").write_bytes(b"Description: only DEP-3\nOrigin: vendor\n" + short)
    world.release("1.1", {A: b"import os\n" + BASE})
    out = world.folder / "out"
    report = world.driver.begin(Session(out), Request("1.1", "1.0", series=other))
    assert report.state == "done"
    assert sorted(p.name for p in out.iterdir()) == ["p.patch", "series"]
    raw = (out / "p.patch").read_bytes()
    assert raw.startswith(b"Description: only DEP-3\nOrigin: vendor\ndiff --git ")
    assert raw.count(b"\n@@ ") == 2
    assert b"Touches" not in raw


def test_what_git_format_patch_wrote(world: World) -> None:
    """A mail of someone else: its text stays, its diff is that of the new release."""
    world.release("1.0", {A: BASE, b"b.bin": bytes(range(256))})
    world.pair.load({A: BASE, b"b.bin": bytes(range(256))}, {A: edited(), b"b.bin": bytes(range(255, -1, -1))})
    new = git.run(["rev-parse", "refs/new^{tree}"], git_dir=world.pair.repo).decode().strip()
    old = git.run(["rev-parse", "refs/old"], git_dir=world.pair.repo).decode().strip()
    made_of = ["commit-tree", new, "-p", old, "-m", "Do it\n\nBecause."]
    commit = git.run(made_of, git_dir=world.pair.repo).decode().strip()
    raw = git.run(["format-patch", "-1", "--stdout", "--binary", commit], git_dir=world.pair.repo)
    assert raw.endswith(b"-- \n" + git.run(["version"]).split()[-1] + b"\n\n")
    world.add("0001-Do-it.patch", raw)
    world.release("1.1", {A: b"import os\n" + BASE, b"b.bin": bytes(range(256))})
    report = world.look(series=world.patches, start="1.0")
    assert [o.kind for o in report.run.outcomes] == [outcome.MOVED]
    out = world.folder / "out"
    world.driver.begin(Session(out), Request("1.1", "1.0", series=world.patches))
    made = (out / "0001-Do-it.patch").read_bytes()
    assert made.startswith(raw[: raw.index(b"diff --git")])
    assert b"GIT binary patch" in made
    assert b"@@ -20,7 +20,7 @@" not in made
    assert not made.endswith(b"\n\n")


def test_an_empty_series(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.release("1.1", {A: b"import os\n" + BASE})
    assert world.begin().state == "done"
    assert (world.clone.patches / "1.1" / "series").read_bytes() == b"# a comment\n"


def test_a_module_that_became_a_package(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: edited()})
    world.release("1.1", {b"vllm/a/__init__.py": BASE, b"vllm/a/more.py": lines("four", "five")})
    world.begin()
    assert world.rebased() == {b"vllm/a/__init__.py": (REGULAR, edited())}


def test_what_both_add_alike_is_upstreamed(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {b"vllm/new.py": b"x = 1\n"})
    world.release("1.1", {A: BASE, b"vllm/new.py": b"x = 1\n"})
    assert world.one().kind == outcome.UPSTREAMED


def test_a_file_that_both_delete(world: World) -> None:
    world.release("1.0", {A: BASE, b"vllm/gone.txt": b"1\n2\n3\n"})
    world.patch("p", {b"vllm/gone.txt": None})
    world.release("1.1", {A: BASE})
    found = world.one()
    assert (found.kind, found.proof) == (
        outcome.UPSTREAMED, ("vllm/gone.txt: with the patch as vLLM 1.1 has it (not there)",),
    )  # fmt: skip
