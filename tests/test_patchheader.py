from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunlunfork.patchheader import Header, parse_header

HEADER = b"""From: Some One <one@invalid>
Date: Tue, 14 Jul 2026 10:00:00 +0200
Subject: [PATCH v2 1/3] Pick the runner class
 in one place
Description: The worker names the class
 .
 itself.
Forwarded: no
Upstream-Status: Inappropriate [Kunlun has no
  Triton]
Remove-When: vllm has a runner registry
Touches: vllm/v1/worker/gpu_worker.py::Worker.init_device
Touches: vllm/v1/worker/cpu_worker.py::

Why: this is the body.

It goes on.
---
 vllm/v1/worker/gpu_worker.py | 2 +-
 assets/logo.png              | Bin 0 -> 12 bytes
 1 file changed, 1 insertion(+), 1 deletion(-)
 create mode 100644 assets/logo.png

"""


def test_a_whole_header() -> None:
    assert parse_header(HEADER) == Header(
        subject="Pick the runner class in one place",
        from_="Some One <one@invalid>",
        date="Tue, 14 Jul 2026 10:00:00 +0200",
        fields=(
            ("Description", "The worker names the class\n.\nitself."),
            ("Forwarded", "no"),
            ("Upstream-Status", "Inappropriate [Kunlun has no\nTriton]"),
            ("Remove-When", "vllm has a runner registry"),
            ("Touches", "vllm/v1/worker/gpu_worker.py::Worker.init_device"),
            ("Touches", "vllm/v1/worker/cpu_worker.py::"),
        ),
        body=b"Why: this is the body.\n\nIt goes on.",
    )


def test_lookup() -> None:
    header = parse_header(HEADER)
    assert header.get("forwarded") == "no"
    assert header.get("Bug") is None
    assert header.all("TOUCHES") == (
        "vllm/v1/worker/gpu_worker.py::Worker.init_device",
        "vllm/v1/worker/cpu_worker.py::",
    )
    assert header.all("Bug") == ()


@pytest.mark.parametrize("raw", [b"", b"\n", b"---\n", b"\n\n---\n\n"])
def test_nothing(raw: bytes) -> None:
    assert parse_header(raw) == Header("", "", "", (), b"")


def test_a_mail_starts_with_a_from_line() -> None:
    header = parse_header(b"From 0123 Mon Sep 17 00:00:00 2001\nFrom: A <a@invalid>\n\nbody\n")
    assert (header.from_, header.body) == ("A <a@invalid>", b"body")


def test_a_body_without_fields() -> None:
    assert parse_header(b"just text: here\nFrom: x\n").body == b"just text: here\nFrom: x"


@pytest.mark.parametrize(
    "rest, body",
    [
        (b"a\n---\nb\n", b"a\n---\nb"),
        (b"a\n---\nb\n---\n", b"a\n---\nb"),
        (b"a\n---\n x | 1 +\n text\n", b"a\n---\n x | 1 +\n text"),
        (b"a\n---\n x | 1 +\n---\n y | 1 +\n\n", b"a\n---\n x | 1 +"),
        (b"a\n x | 2 +-\n", b"a\n x | 2 +-"),
        (b"a\n---", b"a"),
    ],
)
def test_only_a_separator_that_a_diffstat_follows_ends_the_body(rest: bytes, body: bytes) -> None:
    assert parse_header(b"Subject: x\n\n" + rest).body == body


def test_a_field_that_is_there_twice_is_kept() -> None:
    header = parse_header(b"Subject: one\nSubject: two\nFrom: a\n")
    assert header.subject == "one"
    assert header.fields == (("Subject", "two"),)


def test_bytes_that_are_not_utf8_survive() -> None:
    header = parse_header(b"Subject: caf\xe9 \xc3\xa9\nBug: \xff\n\n\xe9\n")
    assert header.subject.encode("utf-8", "surrogateescape") == b"caf\xe9 \xc3\xa9"
    assert header.fields[0][1].encode("utf-8", "surrogateescape") == b"\xff"
    assert header.body == b"\xe9"


def test_only_a_newline_ends_a_line() -> None:
    header = parse_header("Subject: a\u2028b\x0bc\nBug: x\n".encode())
    assert header.subject == "a\u2028b\x0bc"
    assert header.get("Bug") == "x"


@pytest.mark.parametrize(
    "value, subject",
    [
        ("=?UTF-8?q?caf=C3=A9_au?= =?UTF-8?q?_lait?=", "café au lait"),
        ("[PATCH] =?utf-8?B?w6k=?= x", "é x"),
        ("=?ISO-8859-1?Q?=E9?=", "é"),
        ("=?utf-8?q?=FF?=", "=?utf-8?q?=FF?="),
        ("=?utf-8?b?!?=", "=?utf-8?b?!?="),
        ("=?punycode?q?x?=", "=?punycode?q?x?="),
        ("[PATCH] [PATCH] x", "[PATCH] x"),
        ("a [PATCH] x", "a [PATCH] x"),
        ("[RFC] x", "[RFC] x"),
        ("[PATCH", "[PATCH"),
    ],
)
def test_subjects(value: str, subject: str) -> None:
    assert parse_header(f"Subject: {value}\n".encode()).subject == subject


@given(st.one_of(st.binary(), st.text("=?uUtTfF-8qQbB _[PATCH]é\n: ").map(lambda t: b"Subject: " + t.encode())))
def test_anything_gives_a_header(raw: bytes) -> None:
    header = parse_header(raw)
    assert not header.body.startswith(b"\n")
    assert all("\n" not in text for text in (header.subject, header.from_, header.date))


def test_long_lines_take_linear_time() -> None:
    # Any of these, quadratic, would take minutes.
    for text in (b"[PATCH", b"=?a?q?", b"=?a?q?x?= ", b"=?utf-8?q?=41?= ", b" "):
        parse_header(b"Subject: " + text * 100_000)
        parse_header(b"a\n---\n " + text * 100_000)
