from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from patchkit import Files, Pair, mode_and_data, patch

from kunlunfork import lint as linting
from kunlunfork.findings import Overlay
from kunlunfork.lint import CHECKS, SKIPPED, Check, Finding, failures, lint
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry, blob_id

WORKER = b"""import os


class Worker:
    def init_device(self):
        return os.name

    def load_model(self):
        pass
"""
EDITED = WORKER.replace(b"os.name", b"'kunlun'")
BASE: Files = {b"vllm/worker.py": WORKER, b"vllm/data.json": b"{}\n", b"vllm/exe.sh": (EXECUTABLE, b"#!/bin/sh\n")}

HEADER = b"""From: Some One <one@invalid>
Date: Tue, 14 Jul 2026 10:00:00 +0200
Subject: Say where it runs
Upstream-Status: Inappropriate [Kunlun only]
Remove-When: never
Touches: %s

Why.
---
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def header(*touches: bytes) -> bytes:
    return HEADER % b"\nTouches: ".join(touches)


class Fork:
    """A patches folder, an overlay and an upstream to lint."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self.folder = folder / "patches" / "0.25.1"
        self.folder.mkdir(parents=True)
        self.shipped = folder / "overlay" / "0.25.1"
        self.pair = pair
        self.overlay: dict[bytes, tuple[Entry, bytes, Path]] = {}
        self.names: list[str] = []
        self.upstream: Files | None = dict(BASE)
        (self.folder / "pin.toml").write_text("")
        (self.folder / "contracts.json").write_text("")

    def add(self, raw: bytes, name: str | None = None) -> str:
        name = name or f"p{len(self.names)}.patch"
        self.names.append(name)
        (self.folder / name).write_bytes(raw)
        return name

    def edit(self, new: Files, *touches: bytes, old: Files = BASE, options: tuple[str, ...] = ()) -> str:
        return self.add(patch(self.pair, old, {**old, **new}, *options, header=header(*touches)))

    def ship(self, path: bytes, data: bytes, mode: int = REGULAR) -> Path:
        source = self.shipped / path.decode()
        source.parent.mkdir(parents=True, exist_ok=True)
        if mode == SYMLINK:
            source.symlink_to(data.decode())
        else:
            source.write_bytes(data)
            source.chmod(mode & 0o777)
        # As the resolved overlay has it: without the x bit.
        shown = SYMLINK if mode == SYMLINK else REGULAR
        self.overlay[path] = Entry(shown, blob_id(data)), data, source
        return source

    def lint(self) -> tuple[Finding, ...]:
        (self.folder / "series").write_text("".join(f"{name}\n" for name in self.names))
        return self.look()

    def look(self) -> tuple[Finding, ...]:
        files = self.upstream

        def upstream(path: bytes) -> tuple[Entry, bytes] | None:
            assert files is not None
            if path not in files:
                return None
            mode, data = mode_and_data(files[path])
            return Entry(mode, blob_id(data)), data

        return lint(self.folder, self.overlay, None if files is None else upstream)

    def only(self) -> Finding:
        (finding,) = self.lint()
        assert finding.message and finding.fix
        return finding


@pytest.fixture
def fork(tmp_path: Path, pair: Pair) -> Fork:
    return Fork(tmp_path, pair)


def test_a_good_series(fork: Fork) -> None:
    fork.edit({b"vllm/worker.py": EDITED}, b"vllm/worker.py::Worker.init_device")
    edited = {**BASE, b"vllm/worker.py": EDITED}
    fork.edit({b"vllm/worker.py": EDITED + b"\nx = 1\n", b"vllm/data.json": b"[]\n"}, b"vllm/data.json",
              b"vllm/worker.py::Worker.load_model", old=edited)  # fmt: skip
    fork.ship(b"vllm/kunlun.py", b"x = 1\n")
    fork.ship(b"vllm/kunlun.txt", b"text\n=======\n")
    assert fork.lint() == ()


def test_an_empty_series(fork: Fork) -> None:
    assert fork.lint() == ()


def test_series_and_folder_disagree(fork: Fork) -> None:
    fork.names = ["gone.patch", "../x.patch"]
    for name in ("stray.patch", "p.patch.orig", "x.diff", "README.md"):
        (fork.folder / name).write_bytes(b"")
    found = {(f.file, f.line, f.code) for f in fork.lint()}
    at = str(fork.folder)
    assert found == {
        (f"{at}/series", 1, "series"),
        (f"{at}/series", 2, "series"),
        (f"{at}/stray.patch", None, "series"),
        (f"{at}/p.patch.orig", None, "series"),
        (f"{at}/x.diff", None, "series"),
    }


def test_no_series(fork: Fork) -> None:
    (finding,) = fork.look()
    assert (finding.code, finding.line) == ("series", None)
    (finding,) = lint(fork.folder / "gone", {}, lambda path: None)
    assert finding.code == "series"


@pytest.mark.parametrize(
    "old, new, code",
    [
        (b"@@ -3,7 +3,7 @@", b"@@ -3,7 +3,8 @@", "counts"),
        (b" a/vllm", b" vllm", "prefix"),
        (b"\n", b"\r\n", "crlf"),
        (b" 100644", b" 160000", "mode"),
        (b"vllm/worker.py", b"../worker.py", "path"),
    ],
)
def test_a_patch_that_cannot_be_understood(fork: Fork, old: bytes, new: bytes, code: str) -> None:
    raw = patch(
        fork.pair, BASE, {**BASE, b"vllm/worker.py": EDITED}, header=header(b"vllm/worker.py::Worker.init_device")
    )
    spoilt = raw.replace(old, new)
    if code == "prefix":
        spoilt = spoilt.replace(b" b/vllm", b" vllm")
    assert spoilt != raw
    fork.add(spoilt, "spoilt.patch")
    finding = fork.only()
    assert (finding.file, finding.code) == (str(fork.folder / "spoilt.patch"), code)
    assert finding.line is not None


def test_the_others_are_still_looked_at(fork: Fork) -> None:
    fork.add(b"junk\n")
    fork.edit({b"vllm/worker.py": EDITED}, b"vllm/worker.py::wrong")
    fork.edit({b"vllm/data.json": b"[]\n"}, b"vllm/data.json", old={**BASE, b"vllm/data.json": b"# of p0\n"})
    found = fork.lint()
    assert [(Path(f.file).name, f.code) for f in failures(found)] == [("p0.patch", "no-diff"), ("p1.patch", "touches")]
    # What p2 starts from may be what p0 leaves.
    assert [(Path(f.file).name, f.code) for f in found if f.code == SKIPPED] == [("p2.patch", SKIPPED)]
    assert any("p0.patch" in f.message for f in found if f.code == SKIPPED)


def test_short_ids(fork: Fork) -> None:
    raw = patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=header(b"vllm/data.json"))
    fork.add(raw.replace(blob_id(b"{}\n").encode(), blob_id(b"{}\n")[:9].encode()))
    finding = fork.only()
    assert (finding.code, finding.line) == ("ids", 10)
    assert "--full-index" in finding.fix


@pytest.mark.parametrize("field", ["Subject", "From", "Date", "Upstream-Status", "Remove-When"])
def test_missing_fields(fork: Fork, field: str) -> None:
    lines = header(b"vllm/data.json").split(b"\n")
    head = b"\n".join(line for line in lines if not line.startswith(field.encode() + b":"))
    fork.add(patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=head))
    finding = fork.only()
    assert (finding.code, finding.message) == ("header", f"the header has no {field}")


@pytest.mark.parametrize(
    "old, new, line, message",
    [
        (b"Subject:", b"Subject: a\nSubject:", 3, "Subject is there twice"),
        (b"Remove-When:", b"Remove-When: a\nRemove-When:", 5, "Remove-When is there twice"),
        (b" <one@invalid>", b"", 1, "From has no mail address"),
        (b"Tue, 14 Jul 2026", b"yesterday", 2, "Date is not an RFC 2822 date"),
    ],
)
def test_bad_fields(fork: Fork, old: bytes, new: bytes, line: int, message: str) -> None:
    head = header(b"vllm/data.json").replace(old, new)
    fork.add(patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=head))
    finding = fork.only()
    assert (finding.code, finding.line) == ("header", line)
    assert finding.message.startswith(message)


@pytest.mark.parametrize(
    "status, good",
    [
        (b"Inappropriate [no\n Triton]", True), (b"Pending", True), (b"Pending [soon]", True), (b"Denied", True),
        (b"Submitted [https://invalid/1]", True), (b"Accepted [0.26.0]", True), (b"Backport [0123]", True),
        (b"Submitted", False), (b"Inappropriate", False), (b"Inappropriate [ ]", False), (b"Backport 0123", False),
        (b"Pending for now", False), (b"Upstreamed", False), (b"pending", False),
    ],
)  # fmt: skip
def test_status(fork: Fork, status: bytes, good: bool) -> None:
    head = header(b"vllm/data.json").replace(b"Inappropriate [Kunlun only]", status)
    fork.add(patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=head))
    if good:
        assert fork.lint() == ()
    else:
        finding = fork.only()
        assert (finding.code, finding.line) == ("status", 4)


def test_wrong_touches_names_the_right_lines(fork: Fork) -> None:
    fork.edit(
        {b"vllm/worker.py": EDITED, b"vllm/data.json": b"[]\n"}, b"vllm/worker.py::Worker.load_model", b"vllm/data.json"
    )
    finding = fork.only()
    assert (finding.code, finding.line) == ("touches", 6)
    assert "wrong: vllm/worker.py::Worker.load_model; missing: vllm/worker.py::Worker.init_device" in finding.message
    assert finding.fix == "write\nTouches: vllm/data.json\nTouches: vllm/worker.py::Worker.init_device"


def test_touches_that_are_there_twice(fork: Fork) -> None:
    fork.edit({b"vllm/data.json": b"[]\n"}, b"vllm/data.json", b"vllm/data.json")
    assert fork.only().code == "touches"


def test_no_touches(fork: Fork) -> None:
    head = header(b"x").replace(b"Touches: x\n", b"")
    fork.add(patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=head))
    missing, right = fork.lint()
    assert missing.message == "the header has no Touches"
    assert right.fix == "write\nTouches: vllm/data.json"


def test_touches_are_those_of_the_file_that_the_earlier_patches_leave(fork: Fork) -> None:
    moved = b"# one\n# more\n" + WORKER
    fork.edit({b"vllm/worker.py": moved}, b"vllm/worker.py::")
    last = moved.replace(b"        pass", b"        return 1")
    fork.edit({b"vllm/worker.py": last}, b"vllm/worker.py::Worker.load_model", old={**BASE, b"vllm/worker.py": moved})
    assert fork.lint() == ()


def test_markers(fork: Fork) -> None:
    text = b"a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> theirs\n"
    fork.edit({b"vllm/notes.txt": text}, b"vllm/notes.txt")
    source = fork.ship(b"vllm/other.txt", text.replace(b"\n", b"\r\n") + b"<<<<<<<< eight\n|||||||\n")
    found = [(Path(f.file).name, f.line) for f in fork.lint() if f.code == "markers"]
    assert found == [("p0.patch", 17), ("p0.patch", 21), (source.name, 2), (source.name, 6), (source.name, 8)]
    assert len(fork.lint()) == len(found)


def test_markers_that_a_patch_removes_are_no_fault(fork: Fork) -> None:
    fork.upstream = {**BASE, b"t": b"<<<<<<< HEAD\n"}
    fork.edit({b"t": b"x\n"}, b"t", old=fork.upstream)
    assert fork.lint() == ()


@pytest.mark.parametrize("end", [b"-- \n2.39.5\n\n", b"\n"])
def test_text_after_the_diff(fork: Fork, end: bytes) -> None:
    raw = patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=header(b"vllm/data.json"))
    fork.add(raw + end)
    finding = fork.only()
    assert (finding.code, finding.line) == ("tail", raw.count(b"\n") + 1)


def test_a_patch_of_an_overlay_file(fork: Fork) -> None:
    fork.ship(b"vllm/new.py", b"x = 1\n")
    fork.ship(b"vllm/sub/a.py", b"x = 1\n")
    fork.edit({b"vllm/new.py": b"x = 1\n", b"vllm/sub": b"a file\n"}, b"vllm/new.py::", b"vllm/sub")
    fork.edit({b"vllm/new.py/x": b"1\n"}, b"vllm/new.py/x")
    found = fork.lint()
    assert {f.code for f in found} == {"overlay-patched"}
    assert [Path(f.file).name for f in found] == ["p0.patch", "p0.patch", "p1.patch"]
    assert "edits vllm/new.py" in found[0].message
    assert "vllm/sub and a file of the overlay" in found[1].message


def test_a_patch_of_a_file_that_is_not_there(fork: Fork) -> None:
    fork.edit({b"gone.txt": b"2\n"}, b"gone.txt", old={**BASE, b"gone.txt": b"1\n"})
    finding = fork.only()
    assert (finding.code, finding.line) == ("preimage", 10)
    assert "gone.txt is not there" in finding.message


def test_another_preimage(fork: Fork) -> None:
    other = {**BASE, b"vllm/worker.py": WORKER + b"# later\n"}
    fork.edit({b"vllm/worker.py": EDITED + b"# later\n"}, b"vllm/worker.py::Worker.init_device", old=other)
    fault, skipped = fork.lint()
    assert (fault.code, fault.line) == ("preimage", 10)
    assert blob_id(WORKER) in fault.message and blob_id(WORKER + b"# later\n") in fault.message
    # Without the right file nobody can say in which function the hunk lies.
    assert skipped.code == SKIPPED and "Touches" in skipped.message


def test_another_mode(fork: Fork) -> None:
    other = {**BASE, b"vllm/exe.sh": b"#!/bin/sh\n"}
    fork.edit({b"vllm/exe.sh": b"#!/bin/dash\n"}, b"vllm/exe.sh", old=other)
    assert [f.code for f in failures(fork.lint())] == ["preimage"]


def test_a_patch_that_was_edited_by_hand(fork: Fork) -> None:
    raw = patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=header(b"vllm/data.json"))
    fork.add(raw.replace(b"+[]", b"+()"))
    assert fork.only().code == "postimage"


def test_an_overlay_file_that_upstream_has(fork: Fork) -> None:
    first = fork.ship(b"vllm/worker.py", b"x = 1\n")
    second = fork.ship(b"vllm/data.json/x.py", b"x = 1\n")
    found = fork.lint()
    assert [(f.file, f.code) for f in found] == [(str(first), "overlay-upstream"), (str(second), "overlay-upstream")]


def test_overlay_files(fork: Fork) -> None:
    fork.ship(b"vllm/ok.py", b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    fork.ship(b"vllm/bad.txt", b"def f(:\n")
    bad = fork.ship(b"vllm/bad.py", b"x = 1\ndef f(:\n")
    exe = fork.ship(b"vllm/exe.py", b"x = 1\n", EXECUTABLE)
    script = fork.ship(b"vllm/exe.sh2", b"#!/bin/sh\n", EXECUTABLE)
    link = fork.ship(b"vllm/link.py", b"ok.py", SYMLINK)
    fork.ship(b"vllm/link.txt", b"ok.py", SYMLINK)
    out = fork.ship(b"vllm/out.txt", b"../../out", SYMLINK)
    found = {(f.file, f.line, f.code) for f in fork.lint()}
    assert found == {
        (str(bad), 2, "overlay-file"),
        (str(exe), None, "overlay-file"),
        (str(script), None, "overlay-file"),
        (str(link), None, "overlay-file"),
        (str(out), None, "overlay-file"),
    }


@pytest.mark.parametrize(
    "name",
    [".a.py.swp", "a.py.orig", "a.py.rej", "a.py~", "#a.py#", ".#a.py", "a.pyc", "a.py.bak", "x.patch", ".DS_Store"],
)
def test_what_editors_leave_in_the_overlay(fork: Fork, name: str) -> None:
    source = fork.ship(f"vllm/{name}".encode(), b"def f(:\n")
    finding = fork.only()
    assert (finding.file, finding.code) == (str(source), "overlay-file")
    (fork.folder / name).write_bytes(b"")
    assert {f.code for f in fork.lint()} == {"overlay-file", "series"}


def test_two_sections_of_one_file(fork: Fork) -> None:
    first = patch(fork.pair, BASE, {**BASE, b"vllm/data.json": b"[]\n"}, header=header(b"vllm/data.json"))
    second = patch(fork.pair, {**BASE, b"vllm/data.json": b"[]\n"}, {**BASE, b"vllm/data.json": b"[1]\n"})
    fork.add(first + second)
    finding = fork.only()
    assert (finding.code, finding.line) == ("twice", first.count(b"\n") + 1)


def test_without_upstream_the_checks_are_reported_as_skipped(fork: Fork) -> None:
    fork.edit({b"vllm/worker.py": EDITED}, b"wrong")
    fork.ship(b"vllm/worker.py", b"def f(:\n")
    fork.upstream = None
    found = fork.lint()
    assert [f.code for f in failures(found)] == ["overlay-patched", "overlay-file"]
    skipped = [f for f in found if f.code == SKIPPED]
    assert [f.message.split()[0] for f in skipped] == [c.code for c in CHECKS if c.needs_upstream]
    assert all("0.25.1" in f.message and "kunlunfork apply --vllm 0.25.1" in f.fix for f in skipped)


def test_a_check_is_one_entry_of_the_table(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = Check("extra", lambda subject: iter([Finding(subject.file("x"), 1, "extra", "no", "mend it")]))
    monkeypatch.setattr(linting, "CHECKS", (*CHECKS, extra, replace(extra, needs_upstream=True)))
    assert [f.code for f in fork.lint()] == ["extra", "extra"]
    fork.upstream = None
    assert [f.code for f in failures(fork.lint())] == ["extra"]


def test_the_overlay_type_is_what_the_caller_has(fork: Fork) -> None:
    overlay: Overlay = fork.overlay
    assert lint(fork.folder, overlay, lambda path: None)
