from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from patchkit import Pair, patch

from kunlunfork import git
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import FilePatch, Patch, PatchError, message_conflict, parse_patch
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, blob_id

ZERO = b"0" * 40
A, B = (blob_id(x).encode() for x in (b"a\n", b"b\n"))
MODIFY = b"diff --git a/f.py b/f.py\nindex " + A + b".." + B + b" 100644\n--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n"
HEAD = b"From: T <t@invalid>\nDate: Thu, 1 Jan 1970 00:00:00 +0000\nSubject: one line\n\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def refused(raw: bytes) -> PatchError:
    with pytest.raises(PatchError) as caught:
        parse_patch("x.patch", raw)
    error = caught.value
    assert error.message.startswith(f"x.patch, line {error.line}: ")
    assert error.found and error.expected
    return error


def only(raw: bytes) -> FilePatch:
    (file,) = parse_patch("x.patch", raw).files
    return file


def test_modify() -> None:
    parsed = parse_patch("x.patch", HEAD + MODIFY)
    (file,) = parsed.files
    assert (file.kind, file.old_path, file.new_path) == ("modify", b"f.py", b"f.py")
    assert (file.old_mode, file.new_mode) == (REGULAR, REGULAR)
    assert (file.old_blob, file.new_blob) == (A.decode(), B.decode())
    (hunk,) = file.hunks
    assert (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count) == (1, 1, 1, 1)
    assert (hunk.section, hunk.lines, hunk.line) == (b"", (b"-a", b"+b"), 9)
    assert not file.binary
    assert parsed.header.subject == "one line"
    assert parsed.diff == MODIFY and parsed.raw[file.start : file.end] == MODIFY
    assert parsed.sha256 == sha256(HEAD + MODIFY).hexdigest()


NAMES = (
    b"plain.py", b"with space.py", b"x b/x", b"a/b/b/a", b"tab\there", b'quote"d', b"back\\slash", b"new\nline",
    b"cr\r", b"\xc3\xa9.py", b"latin\xe9", b"u\xe2\x80\xa8sep", b"bell\a\b\v\f", b"\x01\x7f", b" lead", b"trail ",
    b"a b/c d \"e\".py", b"dev/null", b"--- a", b"diff --git a", b" b/ b",
)  # fmt: skip


@pytest.mark.parametrize("quoted", ["true", "false"])
def test_names(pair: Pair, quoted: str) -> None:
    old: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    expected = set()
    for name in NAMES:
        text = name * 9
        old.update({name: b"1\n" + text, b"gone" + name: b"", b"moved" + name: text})
        new.update({name: b"2\n" + text, name + b"new": b"3", b"to" + name: text})
        expected |= {
            ("modify", name, name),
            ("delete", b"gone" + name, None),
            ("add", None, name + b"new"),
            ("rename", b"moved" + name, b"to" + name),
        }
    pair.load(old, new)
    args = ["-c", f"core.quotePath={quoted}", "diff-tree", "-r", "-p", "-M", "--full-index", "refs/old", "refs/new"]
    parsed = parse_patch("x.patch", git.run(args, git_dir=pair.repo))
    assert {(f.kind, f.old_path, f.new_path) for f in parsed.files} == expected
    assert len(parsed.files) == len(expected)


def test_every_kind(pair: Pair) -> None:
    body = b"".join(b"line %d\n" % i for i in range(40))
    old = {
        b"mode": b"x", b"moved": body, b"moved edited": body + b"A\n", b"source": body + b"B\n",
        b"gone": b"1\n2\n", b"emptied": b"x\n", b"blob": b"\0\1" * 50, b"link": (SYMLINK, b"mode"), b"turns": b"file\n",
    }  # fmt: skip
    new = {
        b"mode": (EXECUTABLE, b"x"), b"to": body, b"to edited": body + b"C\n", b"source": body + b"D\n",
        b"copy": body + b"B\n", b"emptied": b"", b"empty": b"", b"exe": (EXECUTABLE, b"#!\n"), b"blob": b"\0\2" * 60,
        b"newblob": bytes(range(256)), b"link": (SYMLINK, b"to"), b"turns": (SYMLINK, b"exe"),
    }  # fmt: skip
    raw = patch(pair, old, new, "-M", "-C")
    parsed = parse_patch("x.patch", raw)
    found = {(f.kind, f.old_path, f.new_path, f.old_mode, f.new_mode, f.binary, len(f.hunks)) for f in parsed.files}
    assert found == {
        ("mode", b"mode", b"mode", REGULAR, EXECUTABLE, False, 0),
        ("rename", b"moved", b"to", None, None, False, 0),
        ("rename", b"moved edited", b"to edited", REGULAR, REGULAR, False, 1),
        ("modify", b"source", b"source", REGULAR, REGULAR, False, 1),
        ("copy", b"source", b"copy", None, None, False, 0),
        ("delete", b"gone", None, REGULAR, None, False, 1),
        ("modify", b"emptied", b"emptied", REGULAR, REGULAR, False, 1),
        ("add", None, b"empty", None, REGULAR, False, 0),
        ("add", None, b"exe", None, EXECUTABLE, False, 1),
        ("modify", b"blob", b"blob", REGULAR, REGULAR, True, 0),
        ("add", None, b"newblob", None, REGULAR, True, 0),
        ("modify", b"link", b"link", SYMLINK, SYMLINK, False, 1),
        ("delete", b"turns", None, REGULAR, None, False, 1),
        ("add", None, b"turns", None, SYMLINK, False, 1),
    }
    assert b"".join(raw[f.start : f.end] for f in parsed.files) == raw == parsed.diff
    assert pair.apply(parsed.diff) == pair.tree("new")


def test_the_mode_changes_with_the_content(pair: Pair) -> None:
    file = only(patch(pair, {b"f": b"1\n"}, {b"f": (EXECUTABLE, b"2\n")}))
    assert (file.kind, file.old_mode, file.new_mode, file.old_blob) == ("modify", REGULAR, EXECUTABLE, blob_id(b"1\n"))


@pytest.mark.parametrize(
    "old, new",
    [
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\rb\n", b"a\rc\n"),
        (b"caf\xe9\n", b"th\xe9\n"),
        ("a\u2028b\x0c\x85\n".encode(), "a\u2028c\x0c\x85\x1c\n".encode()),
        (b"no newline", b"a newline\n"),
        (b"a newline\n", b"no newline"),
        (b"no newline", b"either"),
        (b"same\n1\nend", b"same\n2\nend"),
        (b"-- \n", b"--\n"),
        (b"-- a\n", b"++ b\n@@ -1 +1 @@\ndiff --git a/x b/x\n"),
        (b"", b"x"),
        (b"\n\n\n", b"\n"),
    ],
)
def test_contents(pair: Pair, old: bytes, new: bytes) -> None:
    raw = patch(pair, {b"f": old, b"z": b"1"}, {b"f": new, b"z": b"2"})
    parsed = parse_patch("x.patch", raw)
    first, second = parsed.files
    assert [first.new_path, second.new_path] == [b"f", b"z"]
    assert first.new_blob == blob_id(new)
    lines = first.hunks[0].lines
    assert b"\n".join(lines) + b"\n" in raw
    assert pair.apply(parsed.diff) == pair.tree("new")


def test_many_hunks_keep_their_places_and_sections(pair: Pair) -> None:
    old = [b"def f%d():" % i if i % 10 == 0 else b"    x = %d" % i for i in range(60)]
    new = [*old[:5], b"    new = 1", *old[5:30], *old[32:50], b"    y = 50", *old[51:]]
    file = only(patch(pair, {b"f.py": b"\n".join(old)}, {b"f.py": b"\n".join(new)}, "-U1"))
    assert [(h.old_start, h.old_count, h.new_start, h.new_count) for h in file.hunks] == [
        (5, 2, 5, 3), (30, 4, 31, 2), (50, 3, 49, 3),
    ]  # fmt: skip
    assert [h.section for h in file.hunks] == [b"def f0():", b"def f20():", b"def f40():"]


def test_no_context(pair: Pair) -> None:
    raw = patch(pair, {b"f": b"1\n2\n3\n"}, {b"f": b"1\n1.5\n2\n"}, "-U0")
    assert [(h.old_before, h.new_before) for h in only(raw).hunks] == [(1, 1), (2, 3)]


def test_the_same_file_twice() -> None:
    second = MODIFY.replace(A, b"1" * 40).replace(B, A).replace(b"1" * 40, B).replace(b"-a\n+b", b"-b\n+a")
    assert [f.new_blob for f in parse_patch("x.patch", MODIFY + second).files] == [B.decode(), A.decode()]


@pytest.mark.parametrize("end", [b"", b"-- \n2.39.5\n\n", b"-- \n2.39.5 (Apple Git-1)", b"\n", b"\n\n"])
def test_a_signature_is_no_part_of_the_diff(end: bytes) -> None:
    assert parse_patch("x.patch", MODIFY + end).diff == MODIFY


def test_a_signature_after_a_deleted_separator() -> None:
    raw = MODIFY.replace(b"-a\n+b\n", b"--- \n+b\n")
    assert only(raw + b"-- \n2.39.5\n").hunks[0].lines == (b"--- ", b"+b")


MESSAGE = b"""Talks of
---
and of
--- a/f.py
+++ b/f.py
without a hunk, of
@@ -1,2 +1,2 @@
and of
diff --git a/x b/x
From someone
-- @
2.39.5
<<<<<<< not a conflict
 diff --git a/y b/y
 index 0000000..1111111 100644
 --- a/y
""".replace(b"@\n", b"\n")


def test_a_message_that_talks_of_diffs() -> None:
    assert message_conflict(MESSAGE) is None
    for between in (b"", b"\n", b"---\n", b"---\n f.py | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n\n"):
        parsed = parse_patch("x.patch", HEAD + MESSAGE + between + MODIFY)
        assert parsed.diff == MODIFY
        assert parsed.header.body == MESSAGE.rstrip(b"\n")


@pytest.mark.parametrize(
    "quoted, line",
    [
        (MODIFY, 1),
        (b"text\n\n" + MODIFY, 3),
        (MODIFY.split(b"\n", 2)[2], 1),
        (b"diff --git a/x b/x\nindex 12..34\n", 1),
    ],
)
def test_a_message_that_holds_a_diff_is_never_taken_for_one_or_passed_over(quoted: bytes, line: int) -> None:
    assert message_conflict(quoted) == line
    error = refused(HEAD + quoted + b"\nmore text\n---\n" + MODIFY)
    assert error.line >= 4 + line
    assert error.code in ("junk", "not-git", "index")
    indented = b"".join(b" " + text + b"\n" for text in quoted.split(b"\n"))
    assert message_conflict(indented) is None
    assert parse_patch("x.patch", HEAD + indented + b"\nmore text\n---\n" + MODIFY).diff == MODIFY


BINARY = b"""diff --git a/b.bin b/b.bin
new file mode 100644
index 0000000000000000000000000000000000000000..f76dd238ade08917e6712764a16a22005a50573d
GIT binary patch
literal 1
IcmZPo000310RR91

literal 0
HcmV?d00001

"""

REFUSED = {
    "empty": (b"", "no-diff", 1),
    "no diff": (HEAD + b"only text\n", "no-diff", 6),
    "junk": (b"\0\xff\n" * 9, "no-diff", 10),
    "more in the body than the header says": (MODIFY + b"+c\n", "counts", 5),
    "less in the body": (MODIFY.replace(b"+1 @@", b"+1,2 @@") + MODIFY, "counts", 5),
    "less in the body, then a signature": (MODIFY.replace(b"+1 @@", b"+1,2 @@") + b"-- \n2.39\n", "counts", 5),
    "other kinds of lines": (MODIFY.replace(b"-1 +1 @@", b"-1,0 +1,2 @@"), "counts", 5),
    "a later hunk at the wrong new line": (
        MODIFY.replace(b"@@ -1 +1 @@\n-a\n+b\n", b"@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -9 +9 @@\n-x\n+y\n"), "counts", 9),
    "hunks out of order": (
        MODIFY.replace(b"@@ -1 +1 @@\n-a\n+b\n", b"@@ -5 +5 @@\n-a\n+b\n@@ -5 +5 @@\n-x\n+y\n"), "hunk-order", 8),
    "a hunk at line 0": (MODIFY.replace(b"-1 +1", b"-0,1 +0,1"), "hunk-header", 5),
    "a hunk without a change": (MODIFY.replace(b"-a\n+b", b" a"), "empty-hunk", 5),
    "a huge count": (MODIFY.replace(b"+1 @@", b"+1,999999999 @@"), "counts", 5),
    "an absurd count": (MODIFY.replace(b"+1 @@", b"+1," + b"9" * 5000 + b" @@"), "hunk-header", 5),
    "cut in a hunk": (MODIFY[:-3], "counts", 5),
    "cut in a line": (MODIFY[:-1], "truncated", 7),
    "cut before the hunk": (MODIFY.split(b"@@")[0], "truncated", 5),
    "cut after the index line": (MODIFY.split(b"---")[0], "truncated", 3),
    "cut after the first line": (b"diff --git a/x b/x\nold mode 100644\n", "section", 1),
    "a space lost at the end of a line": (
        MODIFY.replace(b"@@ -1 +1 @@\n-a\n", b"@@ -1,2 +1,2 @@\n\n-a\n"), "whitespace", 6),
    "-p0": (MODIFY.replace(b" a/f", b" f").replace(b" b/f", b" f"), "prefix", 1),
    "mnemonic prefixes": (MODIFY.replace(b" a/f", b" i/f").replace(b" b/f", b" w/f"), "prefix", 1),
    "-p0 of a folder named a": (MODIFY.replace(b" b/f", b" a/f"), "prefix", 1),
    "a reversed patch": (MODIFY.replace(b" a/f", b" c/f").replace(b" b/f", b" a/f"), "prefix", 1),
    "-p0 rename": (b"diff --git f g\nsimilarity index 100%\nrename from f\nrename to g\n", "prefix", 1),
    "no git header": (MODIFY.split(b"\n", 2)[2], "not-git", 1),
    "the first of two without git header": (MODIFY.split(b"\n", 2)[2] + MODIFY, "not-git", 1),
    "a mangled first section": (MODIFY.replace(b"diff --git", b"diff --gti") + MODIFY, "not-git", 3),
    "the diff of a merge": (b"diff --cc f\nindex 1,2..3\n--- a/f\n+++ b/f\n@@@ -1 -1 +1 @@@\n", "combined", 1),
    "CRLF": ((HEAD + MODIFY).replace(b"\n", b"\r\n"), "crlf", 1),
    "CRLF below the header": (HEAD + MODIFY.replace(b"\n", b"\r\n"), "crlf", 5),
    "UTF-16": (b"\xff\xfe" + MODIFY.decode().encode("utf-16-le"), "encoding", 1),
    "a byte order mark": (b"\xef\xbb\xbf" + MODIFY, "encoding", 1),
    "an encoded mail": (b"Subject: x\nContent-Transfer-Encoding: base64\n\nZGlmZg==\n", "encoding", 2),
    "conflict markers around sections": (
        b"<<<<<<< HEAD\n" + MODIFY + b"=======\n" + MODIFY + b">>>>>>> x\n", "markers", 9),
    "conflict markers in a hunk": (MODIFY.replace(b"-a\n", b"<<<<<<< HEAD\n-a\n"), "markers", 6),
    "conflict markers alone": (b"<<<<<<< HEAD\n", "markers", 1),
    "text between sections": (MODIFY + b"\nand\n" + MODIFY, "junk", 9),
    "an empty line between sections": (MODIFY + b"\n" + MODIFY, "junk", 9),
    "text at the end": (MODIFY + b"the end\n", "junk", 8),
    "a signature of another kind": (MODIFY + b"-- \nme\n", "counts", 5),
    "two mails": (MODIFY + b"\nFrom 0123 Mon Sep 17 00:00:00 2001\nSubject: b\n\n" + MODIFY, "junk", 9),
    "no index line": (MODIFY.replace(b"index " + A + b".." + B + b" 100644\n", b""), "index", 2),
    "no mode": (MODIFY.replace(b" 100644", b""), "mode", 2),
    "a damaged index line": (MODIFY.replace(b"index " + A, b"index xyz"), "index", 2),
    "zeros for a file that is there": (MODIFY.replace(A, ZERO), "index", 2),
    "an odd mode": (MODIFY.replace(b"100644", b"100666"), "mode", 2),
    "a folder": (MODIFY.replace(b"100644", b"040000"), "mode", 2),
    "a submodule": (MODIFY.replace(b"100644", b"160000"), "mode", 2),
    "a new submodule": (
        b"diff --git a/s b/s\nnew file mode 160000\nindex " + ZERO + b".." + A +
        b"\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+Subproject commit " + A + b"\n", "mode", 2),
    "a device": (b"diff --git a/d b/d\nnew file mode 020666\nindex " + ZERO + b".." + A + b"\n", "mode", 2),
    "a file that turns into a link": (
        MODIFY.replace(b"index", b"old mode 100644\nnew mode 120000\nindex").replace(b" 100644\n---", b"\n---"),
        "mode", 3),
    "two index lines": (MODIFY.replace(b"index", b"index 1111..2222 100644\nindex"), "section", 3),
    "new and deleted": (b"diff --git a/x b/x\nnew file mode 100644\ndeleted file mode 100644\n", "section", 1),
    "half a rename": (b"diff --git a/x b/y\nrename from x\n", "section", 3),
    "a rename to itself": (b"diff --git a/x b/x\nsimilarity index 100%\nrename from x\nrename to x\n", "names", 1),
    "a rename whose lines disagree": (
        b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to z\n", "names", 1),
    "a rename that was cut": (
        b"diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n", "truncated", 5),
    "two names without a rename": (MODIFY.replace(b"b/f.py\nindex", b"b/g.py\nindex"), "names", 1),
    "two quoted names": (MODIFY.replace(b"a/f.py b/f.py\nindex", b'"a/f.py" "b/g.py"\nindex'), "names", 1),
    "names of two lengths": (MODIFY.replace(b"b/f.py\nindex", b"b/longer.py\nindex"), "names", 1),
    "--- names another file": (MODIFY.replace(b"--- a/f", b"--- a/g"), "names", 3),
    "+++ names another file": (MODIFY.replace(b"+++ b/f", b"+++ b/g"), "names", 4),
    "+++ is missing": (MODIFY.replace(b"+++ b/f.py\n", b""), "names", 4),
    "--- says that the file is new": (MODIFY.replace(b"--- a/f.py", b"--- /dev/null"), "names", 3),
    "a bad escape": (MODIFY.replace(b"a/f.py b", b'"a/f\\q.py" b'), "path", 1),
    "an open quote": (MODIFY.replace(b"a/f.py b/f.py\nindex", b'"a/f.py b/f.py\nindex'), "path", 1),
    "an octal escape over a byte": (MODIFY.replace(b"a/f.py b", b'"a/f\\777.py" b'), "path", 1),
    "a NUL in a path": (
        b'diff --git "a/f\\000" "b/f\\000"\nold mode 100644\nnew mode 100755\n', "path", 1),
    "a new file with old lines": (
        b"diff --git a/f b/f\nnew file mode 100644\nindex " + ZERO + b".." + A + b"\n--- /dev/null\n+++ b/f\n"
        b"@@ -1 +1 @@\n-b\n+a\n", "section", 6),
    "a new file without its content": (
        b"diff --git a/f b/f\nnew file mode 100644\nindex " + ZERO + b".." + A + b"\n", "truncated", 4),
    "a deleted file without its content": (
        b"diff --git a/f b/f\ndeleted file mode 100644\nindex " + A + b".." + ZERO + b"\n", "truncated", 4),
    "a deleted file with new lines": (
        b"diff --git a/f b/f\ndeleted file mode 100644\nindex " + A + b".." + ZERO + b"\n--- a/f\n+++ /dev/null\n"
        b"@@ -1 +1 @@\n-a\n+b\n", "section", 6),
    "no newline in the middle": (
        MODIFY.replace(b"@@ -1 +1 @@\n-a\n", b"@@ -1,2 +1,2 @@\n x\n\\ No newline at end of file\n-a\n"),
        "no-newline", 8),
    "no newline before any line": (MODIFY.replace(b"-a\n", b"\\ No newline at end of file\n-a\n"), "no-newline", 6),
    "no newline twice": (MODIFY + b"\\ No newline at end of file\n" * 2, "no-newline", 9),
    "binary without data": (
        MODIFY.split(b"---")[0] + b"Binary files a/f.py and b/f.py differ\n", "binary", 3),
    "binary of another size": (BINARY.replace(b"literal 1", b"literal 2"), "binary", 5),
    "a binary bomb": (BINARY.replace(b"literal 1", b"literal 999999999999"), "binary", 5),
    "binary with a damaged line": (BINARY.replace(b"IcmZPo", b"IcmZP"), "binary", 5),
    "binary with another length": (BINARY.replace(b"IcmZPo", b"JcmZPo"), "binary", 5),
    "binary of unknown form": (BINARY.replace(b"literal 1", b"base64 1"), "binary", 5),
    "binary with a bad delta": (BINARY.replace(b"literal 1", b"delta 1"), "binary", 5),
    "binary that was cut": (BINARY[: BINARY.index(b"\n\n") + 1], "truncated", 7),
}  # fmt: skip


@pytest.mark.parametrize("raw, code, line", REFUSED.values(), ids=REFUSED)
def test_refused(raw: bytes, code: str, line: int) -> None:
    error = refused(raw)
    assert (error.code, error.line) == (code, line), error


def test_the_samples_that_were_spoilt_are_good() -> None:
    assert only(MODIFY).hunks and only(BINARY).binary


def test_counts_are_named() -> None:
    error = refused(MODIFY + b"+c\n")
    assert error.found == "the body has 1 old and 2 new lines"
    assert error.expected == "the header says 1 old and 1 new lines"


def test_crlf_names_the_cause_and_the_remedy() -> None:
    error = refused(MODIFY.replace(b"\n", b"\r\n"))
    assert "the patch file itself was checked out with CRLF" in error.message
    assert error.fix and "*.patch -text" in error.fix


@pytest.mark.parametrize(
    "path",
    [
        b"../x",
        b"x/../../y",
        b"/etc/passwd",
        b".git/config",
        b"x/.GIT/hooks/y",
        b".kunlunfork/lock.json",
        b"x//y",
        b"./x",
    ],
)
@pytest.mark.parametrize("side", ["both", "old", "new"])
def test_paths_that_leave_the_tree(path: bytes, side: str) -> None:
    if side == "both":
        raw = MODIFY.replace(b"/f.py", b"/" + path)
    else:
        old, new = (path, b"ok") if side == "old" else (b"ok", path)
        raw = b"diff --git a/%s b/%s\nsimilarity index 100%%\nrename from %s\nrename to %s\n" % (old, new, old, new)
    error = refused(raw)
    assert (error.code, error.line) == ("path", 1)
    assert error.fix


def link(target: bytes, path: bytes = b"d/link") -> bytes:
    body = b"".join(b"+" + line + b"\n" for line in target.split(b"\n"))
    count = target.count(b"\n") + 1
    return (
        b"diff --git a/%s b/%s\nnew file mode 120000\nindex " % (path, path) + ZERO + b".." + blob_id(target).encode()
        + b"\n--- /dev/null\n+++ b/%s\n@@ -0,0 +1,%d @@\n%s\\ No newline at end of file\n" % (path, count, body)
    )  # fmt: skip


def test_links_inside_the_tree() -> None:
    for target in (b"x", b"../x", b"e/../../x"):
        assert only(link(target)).new_mode == SYMLINK


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../x", b"e/../../../x", b"..\n/../../../..", b""])
def test_links_out_of_the_tree(target: bytes) -> None:
    assert refused(link(target)).code == "symlink"


def test_a_changed_link_out_of_the_tree(pair: Pair) -> None:
    raw = patch(pair, {b"l": (SYMLINK, b"ok")}, {b"l": (SYMLINK, b"../out")})
    assert refused(raw).code == "symlink"
    raw = patch(pair, {b"l": (SYMLINK, b"../out")}, {b"l": (SYMLINK, b"ok")})
    assert only(raw).new_mode == SYMLINK


def test_a_link_whose_target_is_not_shown_whole() -> None:
    raw = link(b"x").replace(b"new file mode 120000\nindex " + ZERO, b"index " + A)
    raw = raw.replace(b"\n--- /dev/null", b" 120000\n--- a/d/link")
    changed = raw.replace(b"@@ -0,0 +1,1 @@\n", b"@@ -1 +1 @@\n-y\n\\ No newline at end of file\n")
    assert only(changed).kind == "modify"
    assert refused(changed.replace(b"-1 +1", b"-2 +2")).code == "symlink"
    assert refused(link(b"x").replace(b"\\ No newline at end of file\n", b"")).code == "symlink"
    gone = raw[: raw.index(b"@@")] + b"@@ -1 +0,0 @@\n-y\n\\ No newline at end of file\n"
    assert refused(gone).code == "symlink"


def test_a_link_as_binary(tmp_path: Path) -> None:
    # Git writes links as text; a hand-made patch must not slip a target past us.
    one = Pair(tmp_path)
    (one.repo / "info").mkdir(exist_ok=True)
    (one.repo / "info" / "attributes").write_text("* -diff\n")
    raw = patch(one, {}, {b"l": b"ok"})
    assert b"GIT binary patch" in raw
    assert only(raw.replace(b"100644", b"120000")).new_mode == SYMLINK
    raw = patch(one, {}, {b"l": b"../out"})
    assert only(raw).new_mode == REGULAR
    assert refused(raw.replace(b"100644", b"120000")).code == "symlink"
    long = b"x" * 2000
    raw = patch(one, {b"l": long + b"a"}, {b"l": long + b"b"})
    assert b"\ndelta " in raw
    assert refused(raw.replace(b"100644", b"120000")).code == "symlink"


def test_a_delta(pair: Pair) -> None:
    noise = random.Random(1).randbytes(4000)
    raw = patch(pair, {b"b": b"\0" + noise}, {b"b": b"\0" + noise + b"end"})
    assert b"\ndelta " in raw
    assert only(raw).binary


def test_a_large_patch_takes_linear_time(pair: Pair) -> None:
    # Any of these, quadratic, would take minutes.
    many = b"".join(MODIFY.replace(b"f.py", b"f%d.py" % i) for i in range(8_000))
    assert len(parse_patch("x.patch", many).files) == 8_000
    assert refused(b"diff --git a/x b/x\n-- \n2.39\n" * 100_000).code == "no-diff"
    assert refused(MODIFY + b"-- \n2.39\n" * 100_000).code == "counts"
    long = b"".join(b"+-- \n+%d\n" % i for i in range(100_000))
    raw = MODIFY.replace(b"+1 @@", b"+1,200001 @@") + long
    assert len(only(raw).hunks[0].lines) == 200_002


# --- what git writes, for any two small trees ---------------------------------------------------------------------

_PIECES = [
    b"a",
    b"b",
    b" ",
    b'"',
    b"\\",
    b"\t",
    b"\n",
    b"\r",
    b"\x01",
    b"\x7f",
    b"\xc3\xa9",
    b"\xff",
    b"\xe2\x80\xa8",
    b"/",
    b" b/",
    b"x",
]
_names = (
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6)
    .map(b"".join)
    .filter(lambda n: all(p not in (b"", b".", b"..") for p in n.split(b"/")))
)
_lines = st.sampled_from(
    [
        b"",
        b"x",
        b"y",
        b"-- ",
        b"++",
        b"@@ -1 +1 @@",
        b"\\",
        b"caf\xe9",
        b"\r",
        b"diff --git a/x b/x",
        b"\x0c",
        b"\xe2\x80\xa8",
    ]
)
_texts = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(_lines, max_size=8), st.sampled_from([b"", b"\n"])
)
_contents = st.one_of(_texts, st.binary(max_size=20).map(lambda b: b"\0" + b))
_files = st.one_of(
    st.tuples(st.sampled_from([REGULAR, EXECUTABLE]), _contents),
    st.tuples(st.just(SYMLINK), st.sampled_from([b"x", b"a b", b"y\nz"])),
)


@st.composite
def _trees(draw: st.DrawFn) -> tuple[dict[bytes, tuple[int, bytes]], dict[bytes, tuple[int, bytes]]]:
    names = draw(st.lists(_names, min_size=1, max_size=5, unique=True))
    folders = {b"/".join(n.split(b"/")[:i]) for n in names for i in range(1, n.count(b"/") + 1)}
    names = [n for n in names if n not in folders] or [b"only"]
    old = {n: draw(_files) for n in names if draw(st.booleans())}
    new = {
        n: draw(st.one_of(st.sampled_from([*old.values()] or [(REGULAR, b"")]), _files))
        for n in names
        if draw(st.booleans())
    }
    return old, new


def _raw_records(raw: bytes) -> list[tuple[bytes, int, int, str, str, bytes, bytes]]:
    fields = iter(raw.split(b"\0")[:-1])
    records = []
    for meta in fields:
        old_mode, new_mode, old, new, status = meta[1:].split(b" ")
        path = next(fields)
        target = next(fields) if status[:1] in b"RC" else path
        records.append((status[:1], int(old_mode, 8), int(new_mode, 8), old.decode(), new.decode(), path, target))
    return records


def _agrees(record: tuple[bytes, int, int, str, str, bytes, bytes], files: list[FilePatch]) -> None:
    status, old_mode, new_mode, old, new, path, target = record
    if status == b"T":
        gone, made = files
        assert (gone.kind, gone.old_path, gone.old_mode, gone.old_blob) == ("delete", path, old_mode, old)
        assert (made.kind, made.new_path, made.new_mode, made.new_blob) == ("add", path, new_mode, new)
        return
    (file,) = files
    assert file.old_path == (None if status == b"A" else path)
    assert file.new_path == (None if status == b"D" else target)
    assert (
        file.kind
        in {b"A": ("add",), b"D": ("delete",), b"R": ("rename",), b"C": ("copy",), b"M": ("modify", "mode")}[status]
    )
    # A section that leaves the bytes alone names no blob, and a pure rename no mode.
    if file.old_blob is None and file.new_blob is None:
        assert old == new
    else:
        assert (file.old_blob or ZERO.decode(), file.new_blob or ZERO.decode()) == (old, new)
    if file.old_mode is None and file.new_mode is None:
        assert old_mode == new_mode
    else:
        assert (file.old_mode or 0, file.new_mode or 0) == (old_mode, new_mode)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(_trees(), st.sampled_from([(), ("-M",), ("-M", "-C", "--find-copies-harder"), ("-U0",)]))
def test_any_two_trees(
    pair: Pair, trees: tuple[dict[bytes, tuple[int, bytes]], dict[bytes, tuple[int, bytes]]], options: tuple[str, ...]
) -> None:
    pair.load(*trees)
    raw = pair.diff(*options)
    records = _raw_records(pair.raw(*(o for o in options if o != "-U0")))
    if not records:
        assert raw == b""
        return
    parsed = parse_patch("x.patch", raw)
    files = list(parsed.files)
    for record in records:
        count = 2 if record[0] == b"T" else 1
        _agrees(record, files[:count])
        del files[:count]
    assert not files
    try:
        made = pair.apply(parsed.diff)
    except git.GitFailed:
        # git cannot read what it wrote of an empty file whose path starts with a space.
        assume(not any(path.startswith(b" ") for tree in trees for path in tree))
        raise
    assert made == pair.tree("new")


# --- and for anything else ----------------------------------------------------------------------------------------


def _parse(raw: bytes) -> Patch | None:
    try:
        return parse_patch("x.patch", raw)
    except ForkError:
        return None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    _parse(raw)
    _parse(b"diff --git a/x b/x\nindex " + raw)
    _parse(MODIFY[: MODIFY.index(b"@@")] + b"@@ " + raw)
    message_conflict(raw)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_patch_is_refused_or_still_one_that_git_reads_the_same_way(pair: Pair, data: st.DataObject) -> None:
    raw = data.draw(
        st.sampled_from(
            [HEAD + MODIFY + link(b"x") + BINARY, MODIFY * 2, HEAD + MODIFY.replace(b"f.py", b"f y"), BINARY]
        )
    )
    lines = raw.split(b"\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = data.draw(
            st.sampled_from([*lines, b"", b"-x", b"+x", b" x", b"@@ -1 +1 @@", b"-- ", b"index 1111..2222"])
        )
        match data.draw(st.sampled_from(["insert", "delete", "replace", "byte"])):
            case "insert":
                lines.insert(at, line)
            case "delete":
                del lines[at : at + 1]
            case "replace" if lines:
                lines[at] = line
            case "byte" if lines[at : at + 1] and lines[at]:
                cut = data.draw(st.integers(0, len(lines[at]) - 1))
                lines[at] = lines[at][:cut] + data.draw(st.binary(max_size=2)) + lines[at][cut + 1 :]
        lines = lines or [b""]
    parsed = _parse(b"\n".join(lines))
    if parsed is None:
        return
    assert parsed.files[0].start <= parsed.files[-1].end <= len(parsed.raw)
    assert all(a.end == b.start for a, b in zip(parsed.files, parsed.files[1:], strict=False))
    stat = git.run(["apply", "--numstat", "-z", "--unidiff-zero"], git_dir=pair.repo, stdin=parsed.diff)
    assert stat.count(b"\0") >= len(parsed.files)
