"""The report for people: one HTML file that asks for nothing else, and Markdown; what is shown is what differs."""

from __future__ import annotations

import html
import re

import pytest
from bs4 import BeautifulSoup
from diffkit import Differ
from hypothesis import given, settings
from hypothesis import strategies as st
from rebasekit import lines

from kunlunfork.diff import code
from kunlunfork.rebase import linediff
from kunlunfork.rebase.linediff import Change

FILE = b"vllm/v1/worker/gpu_worker.py"
BASE = lines("a", "b", "c", "d", "e")
HOSTILE = b"x = '<script>alert(1)</script>'  # &amp; \x1b[31m \xff\xe9 ```\n"
LINE = st.text(st.sampled_from(" ab<&\"'#(_)="), max_size=12)


@pytest.fixture
def small(differ: Differ) -> Differ:
    world = differ.world
    world.release("1.0", {FILE: BASE})
    world.patch(
        "one", {FILE: BASE.replace(b"b_3 = x + 3", b"b_3 = x + 33").replace(b"    d_1 = x + 1\n", b"") + HOSTILE}
    )
    world.release("1.1", {FILE: BASE.replace(b"a_1 = x + 1", b"a_1 = x + 11")})
    return differ


def page(differ: Differ, *words: str, **options: object) -> BeautifulSoup:
    raw = differ.text(*(words or ("runner",)), form="html", **options).decode()  # type: ignore[arg-type]
    # It would make one space of several between two tags.
    return BeautifulSoup(raw, "html.parser", preserve_whitespace_tags={"td"})


def test_the_page_is_whole_and_asks_for_nothing(small: Differ) -> None:
    raw = small.text("runner", form="html", against="1.1")
    soup = BeautifulSoup(raw, "html.parser")
    assert not soup.find_all(["script", "link", "img", "iframe", "object", "form"])
    assert not re.search(rb"https?://|url\(|@import", raw)
    assert soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"].startswith(
        "default-src 'none'"
    )  # type: ignore[index,union-attr]
    assert b"prefers-color-scheme: dark" in raw
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in soup.find_all("a")} <= {f"#{name}" for name in ids}
    assert raw == small.text("runner", form="html", against="1.1"), "the same every time"


def test_what_a_file_holds_is_text(small: Differ) -> None:
    soup = page(small)
    [cell] = [td for td in soup.find_all("td", class_="add") if "alert" in td.get_text()]
    assert cell.get_text() == r"x = '<script>alert(1)</script>'  # &amp; \x1b[31m \xff\xe9 ```"
    assert "\x1b" not in str(soup)


def test_both_sides_are_there_line_by_line(small: Differ) -> None:
    """Put together, folded parts included, the page's columns are the two files."""
    soup = page(small)
    columns: tuple[list[str], list[str]] = ([], [])
    for row in soup.select(".src tr"):
        number_a, a, number_b, b = row.find_all("td")
        for column, number, cell in ((columns[0], number_a, a), (columns[1], number_b, b)):
            if number.get_text():
                column.append(cell.get_text())
                assert int(number.get_text()) == len(column)
    assert "\n".join(columns[0]) + "\n" == BASE.decode()
    made = BASE.replace(b"b_3 = x + 3", b"b_3 = x + 33").replace(b"    d_1 = x + 1\n", b"")
    assert "\n".join(columns[1][:-1]) + "\n" == made.decode()
    assert {d.summary.get_text() for d in soup.select(".src details")} == {
        "⋯ 10 unchanged lines",
        "⋯ 9 unchanged lines",
    }  # type: ignore[union-attr]


def test_words_that_changed_are_marked(small: Differ) -> None:
    soup = page(small)
    marked = [(td["class"], b.get_text()) for td in soup.select("td.del, td.add") for b in td.find_all("b")]
    assert marked == [(["del"], "3"), (["add"], "33")]


def test_headings_and_notes(small: Differ) -> None:
    soup = page(small, against="1.1")
    assert [p.get_text() for p in soup.select("p.hunk")][:2] == ["b", "d"]
    said = [p.get_text() for p in soup.select("p.note")]
    assert said[0] == "one.patch: one; Upstream-Status: Pending; Remove-When: never"
    assert "still needed in vLLM 1.1" in said[1]
    assert next(p.get_text() for p in soup.select("section > p")).startswith("Nothing: 3 hunks of patches were carried")


def test_no_difference_is_a_page_too(small: Differ) -> None:
    assert "Nothing differs." in page(small, "vllm/__init__.py").get_text()


def test_markdown_cannot_be_broken_out_of(small: Differ) -> None:
    shown = small.text("runner", form="md").decode()
    assert "\x1b" not in shown
    fences = [line for line in shown.splitlines() if line.startswith("````")]
    assert len(fences) == 2, "the file has three backticks, so its fence has four"
    assert "<script>" not in shown.replace("+x = '<script>", "").replace("one.patch", "") or "````diff" in shown
    assert f"`{FILE.decode()}` | +2 -2 |" in shown


@given(st.lists(LINE, max_size=8), st.lists(LINE, max_size=8))
@settings(max_examples=150, deadline=None)
def test_pairs_are_in_order_and_whole(old: list[str], new: list[str]) -> None:
    found = list(code.pairs(Change(0, len(old), 0, len(new)), old, new))
    assert [p.old for p in found if p.old is not None] == list(range(len(old)))
    assert [p.new for p in found if p.new is not None] == list(range(len(new)))


@given(LINE, LINE)
@settings(max_examples=200, deadline=None)
def test_marks_cover_what_differs(old: str, new: str) -> None:
    """Without the marked parts both lines are the same, and marking loses no character."""
    marks = code.words(old, new)
    rest = []
    for text, found in zip((old, new), marks, strict=True):
        line = [("k", text[:4]), ("", text[4:])]
        shown = code.html(line, found)
        assert html.unescape(re.sub(r"</?[bi][^>]*>", "", shown)) == text
        bold = "".join(html.unescape(re.sub(r"</?i[^>]*>", "", part)) for part in re.findall(r"<b>(.*?)</b>", shown))
        assert bold == "".join(text[a:b] for a, b in found)
        rest.append("".join(c for n, c in enumerate(text) if not any(a <= n < b for a, b in found)))
    if marks != ([], []):
        assert rest[0] == rest[1]


@given(st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_there_are_as_many_lines_as_git_counts(data: bytes) -> None:
    for name in (b"x.py", b"x.txt"):
        assert len(code.lines(data, name)) == len(linediff.cut(data))
