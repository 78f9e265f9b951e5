"""A patch's header and a commit's message say the same, whatever people write into them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import REPO, VERSION

from kunlunfork import messages, series
from kunlunfork.errors import ForkError
from kunlunfork.messages import Text
from kunlunfork.patchfile import parse_patch

DIFF = (
    b"diff --git a/a.py b/a.py\n"
    b"index 257cc5642cb1a054f08cc83f2d943e56fd3ebe99..5716ca5987cbf97d6bb54920bea6adde242d87e6 100644\n"
    b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-foo\n+bar\n"
)
TEXT = Text(
    "Zoë Ångström", "zoe@example.org", 1796040000, "+0530", "Keep the bonus token", b"Why:\n\n  it was lost.  ",
    (("Upstream-Status", "Submitted [vllm#1\nand vllm#2]"), ("Signed-off-by", "Zoë <zoe@example.org>")),
)  # fmt: skip


def again(text: Text, touches: tuple[str, ...] = ("a.py::f",)) -> Text:
    raw = messages.header(text, touches, what="commit 1")
    patch = parse_patch("keep.patch", raw + DIFF)
    assert patch.header.all("Touches") == touches
    assert patch.diff == DIFF
    return messages.of_patch(patch, VERSION).without(messages.PATCH, messages.PIN)


def test_of_the_patches_that_we_ship() -> None:
    for patch in series.load_series(REPO / "patches" / VERSION):
        text = messages.of_patch(patch, VERSION)
        read = messages.parse_message(text.message, text.name, text.mail, text.time, text.zone)
        assert read == text
        assert (read.get(messages.PATCH), read.get(messages.PIN)) == (patch.name, VERSION)
        assert read.get("Upstream-Status")
        touches = patch.header.all("Touches")
        assert messages.header(read, touches, what="it") == messages.header_of(patch), "we write them ourselves"
        assert messages.with_touches(messages.header_of(patch), touches) == messages.header_of(patch)


def test_a_header_is_read_as_it_was_written() -> None:
    assert again(TEXT) == TEXT
    assert again(replace(TEXT, body=b"", fields=())) == replace(TEXT, body=b"", fields=())


@pytest.mark.parametrize("subject", ["[PATCH] twice", "[PATCHES] are many", "Subject: yes", "a: b", "ü — 行"])
def test_subjects(subject: str) -> None:
    assert again(replace(TEXT, subject=subject)).subject == subject


@pytest.mark.parametrize(
    "body",
    [
        b"---",
        b"before\n---\nafter",
        b"---\n a.py | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)",
        b"From me to you",
        b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001",
        b"diff --git a/x b/x",
        b"Upstream-Status: in the text\n\nand more",
        b"@@ -1 +1 @@",
        b"-- \n2.39.5",
        b"<<<<<<< ours",
        b"trailing   \n\ttabs\t",
        b"Latin-1 \xe9",
        "ünïcödé 行\u2028列".encode(),
        b"a\n\n\n\nb",
    ],
)
def test_bodies_that_look_like_something_else_stay_as_they_are(body: bytes) -> None:
    text = replace(TEXT, body=body)
    assert again(text) == text
    read = messages.parse_message(text.message, text.name, text.mail, text.time, text.zone)
    assert read == text


@pytest.mark.parametrize(
    "lines",
    [
        DIFF,
        b"text\n" + DIFF,
        DIFF + DIFF,
        b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b",
        b"diff --cc x\nindex 1,2..3",
    ],
)
def test_a_diff_in_the_message_is_moved_in(lines: bytes) -> None:
    text = replace(TEXT, body=lines.strip(b"\n"))
    found = again(text).body
    assert [line.strip() for line in found.split(b"\n")] == [line.strip() for line in text.body.split(b"\n")]
    assert again(replace(text, body=found)).body == found, "and once moved, it stays"


@pytest.mark.parametrize("subject", ["=?utf-8?q?x?=", "two\nlines", ""])
def test_a_message_that_a_header_cannot_hold_is_refused(subject: str) -> None:
    with pytest.raises(ForkError, match="commit 1") as error:
        again(replace(TEXT, subject=subject))
    assert "reword" in (error.value.fix or "")


@pytest.mark.parametrize(
    ("zone", "date"),
    [
        ("+0000", "Mon, 30 Nov 2026 12:00:00 +0000"),
        ("-0330", "Mon, 30 Nov 2026 08:30:00 -0330"),
        ("+1400", "Tue, 01 Dec 2026 02:00:00 +1400"),
    ],
)
def test_dates_keep_their_zone(zone: str, date: str) -> None:
    text = replace(TEXT, zone=zone)
    assert f"Date: {date}".encode() in messages.header(text, (), what="it").split(b"\n")
    assert again(text) == text


@pytest.mark.parametrize("zone", ["+9999", "hello", "+0000"])
@pytest.mark.parametrize("time", [0, -1, 10**18])
def test_dates_that_nobody_can_have_become_some_date(time: int, zone: str) -> None:
    assert b"\nDate: " in messages.header(replace(TEXT, time=time, zone=zone), (), what="it")


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"Subject: x\n\n---\n", b"Subject: x\nTouches: n::a\nTouches: n::b\n\n---\n"),
        (
            b"Subject: x\nTouches: o::1\n o::2\nRemove-When: y\ntouches: p\n\nTouches: in the text\n---\n",
            b"Subject: x\nTouches: n::a\nTouches: n::b\nRemove-When: y\n\nTouches: in the text\n---\n",
        ),
        (
            b"From 0 Mon\nSubject: x\n folded\nTouches: o\n\n---\n",
            b"From 0 Mon\nSubject: x\n folded\nTouches: n::a\nTouches: n::b\n\n---\n",
        ),
        (b"", b"Touches: n::a\nTouches: n::b\n"),
    ],
)
def test_touches_are_replaced_and_nothing_else(head: bytes, wanted: bytes) -> None:
    found = messages.with_touches(head, ("n::a", "n::b"))
    assert found == wanted
    assert messages.with_touches(found, ("n::a", "n::b")) == found


_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=30)
_WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,9}", fullmatch=True)


@given(
    subject=_LINE.map(lambda s: " ".join(s.split())).filter(bool),
    body=st.lists(_LINE, max_size=6).map(lambda lines: "\n".join(lines)),
    fields=st.lists(st.tuples(_WORD, _LINE.map(str.strip)), max_size=3),
)
def test_any_message(subject: str, body: str, fields: list[tuple[str, str]]) -> None:
    """What is read of a commit's message is kept by the patch, or refused; never changed."""
    raw = Text("A", "a@b", 1, "+0000", subject, body.encode(), tuple(fields)).message
    text = messages.parse_message(raw, "A", "a@b", 1, "+0000")
    own = (messages.PATCH, messages.PIN, messages.OVERLAY, messages.TOUCHES)
    text = text.without(*own)
    try:
        found = again(text)
    except ForkError as e:
        assert "the message of commit 1" in e.message
        return
    assert found == text
