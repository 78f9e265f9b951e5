"""Each class of conflicts; renames that are certain, and those that are not."""

from __future__ import annotations

import pytest
from rebasekit import World, lines

from kunlunfork.paths import REGULAR, SYMLINK
from kunlunfork.rebase import outcome
from kunlunfork.rebase.outcome import Conflict, Outcome

A, C = b"vllm/a.py", b"vllm/c.py"
BASE = lines("one", "two", "three", count=12)
EDITED = BASE.replace(b"two_6 = x + 6", b"two_6 = x - 6")
# Two files that say nothing of their own, as `__init__.py` files do.
TINY = b"# SPDX-License-Identifier: Apache-2.0\n# SPDX-FileCopyrightText: Copyright contributors to the vLLM project\n"


def conflict(found: Outcome) -> Conflict:
    assert found.kind == outcome.CONFLICT, found
    assert len(found.conflicts) == 1, found.conflicts
    return found.conflicts[0]


@pytest.mark.parametrize(
    ("kind", "old", "patched", "new"),
    [
        ("content", {b"t.txt": b"1\n2\n3\n"}, {b"t.txt": b"1\n0\n3\n"}, {b"t.txt": b"1\nII\n3\n"}),
        ("binary", {b"b.bin": b"a\0b"}, {b"b.bin": b"a\0c"}, {b"b.bin": b"a\0d"}),
        ("modify/delete", {A: BASE}, {A: EDITED}, {}),
        ("modify/delete", {A: BASE}, {A: None}, {A: EDITED}),
        ("add/add", {}, {b"new.txt": b"ours\n"}, {b"new.txt": b"theirs\n"}),
        ("file/directory", {}, {b"x": b"file\n"}, {b"x/y.txt": b"folder\n"}),
        ("file/directory", {b"t.txt": b"1\n2\n3\n"}, {b"t.txt": b"1\n0\n3\n"}, {b"t.txt/y": b"folder\n"}),
        ("mode", {b"l": b"file\n"}, {b"l": b"other\n"}, {b"l": (SYMLINK, b"pyproject.toml")}),
        ("rename/delete", {A: BASE}, {A: None, C: EDITED}, {}),
        ("rename/delete", {A: BASE}, {A: None}, {C: EDITED}),
        ("rename", {A: BASE}, {A: None, b"vllm/b.py": EDITED}, {C: BASE}),
        ("rename", {b"f/x.txt": b"1\n"}, {b"f/y.txt": b"2\n"}, {b"g/x.txt": b"1\n"}),
        ("rename", {b"p/__init__.py": TINY}, {b"p/__init__.py": TINY + b"x = 1\n"}, {b"q/__init__.py": TINY}),
    ],
)
def test_class(
    world: World, kind: str, old: dict[bytes, bytes], patched: dict[bytes, bytes | None],
    new: dict[bytes, bytes | tuple[int, bytes]],
) -> None:  # fmt: skip
    world.release("1.0", {**old, b"other.txt": b"1\n2\n3\n"})
    world.patch("p", {**patched, b"other.txt": b"1\n2\n4\n"})
    world.patch("q", {b"own.txt": b"q\n"})
    world.release("1.1", {**new, b"other.txt": b"0\n1\n2\n3\n"})
    first, second = world.look().run.outcomes
    found = conflict(first)
    assert found.kind == kind
    assert found.why
    assert second.kind == outcome.UNCHANGED
    fates = {hunk.path: hunk.kind for hunk in first.hunks}
    assert fates.pop(b"other.txt") == outcome.MOVED, "what is not in conflict is told too"
    assert set(fates.values()) == {outcome.CONFLICT}
    # A person sees it, and can go on from there.
    world.begin()
    assert found.path in {row.rpartition("\t")[2].encode() for row in world.git("ls-files", "-u").splitlines()}
    report = world.driver.skip(world.session, "")
    assert report.state == "done"
    assert world.rebased() == {b"own.txt": (REGULAR, b"q\n")}


def test_the_release_that_deleted_a_file_is_named(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {A: b"import os\n" + BASE})
    world.release("1.2", {})
    world.release("1.3", {b"vllm/z.py": b""})
    report = world.look("1.3")
    assert [(o.version, o.kind) for o in report.run.outcomes] == [("1.1", "moved"), ("1.2", "conflict")]
    assert report.run.stop is not None
    assert report.run.stop.outcome.conflicts[0].why.startswith("vLLM 1.2 deleted it")


def test_a_renamed_file_takes_the_edit_along(world: World) -> None:
    """Case 6, with an edit of upstream's in the same release."""
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.patch("q", {A: EDITED.replace(b"one_1 = x + 1", b"one_1 = x - 1")})
    moved = BASE.replace(b"three_9 = x + 9", b"three_9 = x * 9")
    world.release("1.1", {C: moved, b"vllm/b.py": lines("four", "five", count=20)})
    first, second = world.begin().run.outcomes
    assert (first.kind, second.kind) == (outcome.MERGED, outcome.MERGED)
    assert first.moves == ((A, C),)
    assert "renamed, 9" in first.how[0]
    edited = EDITED.replace(b"one_1 = x + 1", b"one_1 = x - 1").replace(b"three_9 = x + 9", b"three_9 = x * 9")
    assert world.rebased()[C] == (REGULAR, edited)
    assert A not in world.rebased()


def test_the_patchs_own_rename_takes_upstreams_edit_along(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: None, C: EDITED})
    world.release("1.1", {A: BASE.replace(b"three_9 = x + 9", b"three_9 = x * 9")})
    found = world.begin().run.outcomes[0]
    assert found.kind == outcome.MOVED, found
    assert world.rebased() == {C: (REGULAR, EDITED.replace(b"three_9 = x + 9", b"three_9 = x * 9"))}
    assert b"rename from vllm/a.py\n" in (world.clone.patches / "1.1" / "p.patch").read_bytes()


@pytest.mark.parametrize("twins", [1, 2])
def test_tiny_files_are_never_paired(world: World, twins: int) -> None:
    """Case 29: git pairs `autoregressive/__init__.py` with `dflash2/__init__.py`, which is another package."""
    old, new = b"spec/autoregressive/__init__.py", [b"spec/dflash2/__init__.py", b"spec/recurrent/__init__.py"][:twins]
    world.release("1.0", {old: TINY, b"spec/__init__.py": TINY})
    world.patch("p", {old: TINY + b"import hook\n"})
    world.release("1.1", {**dict.fromkeys(new, TINY), b"spec/__init__.py": TINY})
    found = conflict(world.one())
    assert (found.kind, set(found.candidates)) == ("rename", set(new))
    assert "too small" in found.why
    # Said by a person, it is no question any more, and the pin keeps it.
    target = new[-1].decode()
    report = world.begin(renames=((old.decode(), target),))
    assert report.run.outcomes[0].moves == ((old, new[-1]),)
    assert world.rebased() == {new[-1]: (REGULAR, TINY + b"import hook\n")}
    assert world.clone.pin("1.1").renames == ((old.decode(), target),)


def test_look_alike_files_are_never_paired(world: World) -> None:
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    world.release("1.1", {C: BASE.replace(b"one_0", b"one0"), b"vllm/d.py": BASE.replace(b"one_1", b"one1")})
    found = conflict(world.one())
    assert (found.kind, "in doubt" in found.why) == ("rename", True)
    assert set(found.candidates) == {C, b"vllm/d.py"}


def test_a_map_of_folders(world: World) -> None:
    world.release("1.0", {b"old/x/a.py": BASE, b"old/b.py": TINY})
    world.patch("p", {b"old/x/a.py": EDITED, b"old/b.py": TINY + b"x = 1\n", b"old/new.py": b"y = 1\n"})
    world.release("1.1", {b"new/x/a.py": BASE, b"new/b.py": TINY})
    world.begin(renames=(("old/", "new/"),))
    assert world.rebased() == {
        b"new/x/a.py": (REGULAR, EDITED), b"new/b.py": (REGULAR, TINY + b"x = 1\n"),
        b"new/new.py": (REGULAR, b"y = 1\n"),
    }  # fmt: skip


def test_the_map_of_a_pin_on_the_way(world: World) -> None:
    """What was said once for a release holds for whoever comes by it."""
    world.release("1.0", {b"p/__init__.py": TINY})
    world.patch("p", {b"p/__init__.py": TINY + b"x = 1\n"})
    world.release("1.1", {b"q/__init__.py": TINY})
    world.release("1.2", {b"q/__init__.py": TINY})
    world.begin("1.1", renames=(("p/__init__.py", "q/__init__.py"),))
    report = world.look("1.2", start="1.0")
    assert [o.kind for o in report.run.outcomes] == [outcome.MERGED, outcome.UNCHANGED]


def test_look_alike_functions(world: World) -> None:
    """Case 1: upstream rewrites the patched function and adds one that looks as it did; `patch` edits that one."""
    body = "    a = start()\n    b = a + 1\n    c = b + 1\n    return c\n"
    old = f"def forward():\n{body}\n\ndef other():\n    pass\n"
    new = f"def warmup():\n{body}\n\ndef forward():\n    return run(start())\n\n\ndef other():\n    pass\n"
    world.release("1.0", {A: old.encode()})
    world.patch("p", {A: old.replace("c = b + 1", "c = b + 2").encode()})
    world.release("1.1", {A: new.encode()})
    found = conflict(world.one())
    assert found.kind in ("content", "scope")


def test_a_class_with_another_name(world: World) -> None:
    """The text merges, but into a class that nobody said is the same."""
    body = "".join(
        f"    def m{i}(self):\n        a{i} = {i}\n        b{i} = {i}\n        return a{i}\n\n" for i in range(9)
    )
    world.release("1.0", {A: f"class Old:\n{body}".encode()})
    world.patch("p", {A: f"class Old:\n{body}".replace("b4 = 4", "b4 = 5").encode()})
    world.release("1.1", {A: f"import os\n\n\nclass New:\n{body}".encode()})
    found = conflict(world.one())
    assert (found.kind, "Old.m4" in found.why, "New.m4" in found.why) == ("scope", True, True)
    assert conflict(world.one(renames=(("vllm/b.py::Old", "New"),))).kind == "scope", "another file"
    report = world.begin(renames=(("vllm/a.py::Old", "New"),))
    assert report.run.outcomes[0].kind == outcome.MOVED
    assert world.rebased()[A][1] == f"import os\n\n\nclass New:\n{body}".replace("b4 = 4", "b4 = 5").encode()
    assert world.clone.pin("1.1").renames == (("vllm/a.py::Old", "New"),)


def test_overlay_files_that_upstream_has_by_now(world: World) -> None:
    """Case 24, as a file and as a folder's place."""
    layer = world.clone.overlay / "1.0"
    (layer / "vllm").mkdir(parents=True)
    (layer / "vllm" / "ours.py").write_bytes(b"x = 1\n")
    (layer / "vllm" / "free.py").write_bytes(b"x = 1\n")
    (layer / "vllm" / "folder.py").write_bytes(b"x = 1\n")
    (layer / "vllm" / "file").mkdir()
    (layer / "vllm" / "file" / "in.py").write_bytes(b"x = 1\n")
    world.release("1.0", {A: BASE})
    world.patch("p", {A: EDITED})
    theirs = dict.fromkeys((b"vllm/ours.py", b"vllm/folder.py/x.py", b"vllm/file"), b"theirs = 1\n")
    world.release("1.1", {A: BASE, **theirs})
    report = world.begin()
    assert report.collisions == (b"vllm/file/in.py", b"vllm/folder.py", b"vllm/ours.py")
    assert report.needs_a_person
    assert report.state == "done"
