"""`kunlunfork matrix report`: each format says the same, and what a file of results holds is never more than text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import advice
import pytest
from matrixkit import CELL, FAILED, RUN
from support import REPO

from kunlunfork import cli, errors
from kunlunfork.content import Content
from kunlunfork.matrix import junit, merge, report, reporthtml, reportmd, reportterm
from kunlunfork.matrix.cells import Cell, replay
from kunlunfork.matrix.results import Loaded, Writer

EVIL = "<script>alert(1)</script>\"'`|*_[x](y) &amp; \x1b[31m\x00\u202e\ud800 ]]> {{7*7}} --><!--"
HOSTILE = Cell(
    replace(RUN, pin=EVIL, device=EVIL, tier=EVIL, overlay=EVIL, machine=EVIL, versions={EVIL: EVIL}, date=EVIL),
    EVIL, EVIL, "failed", (1,), EVIL, EVIL, EVIL, EVIL, (EVIL,), None, 0.1, 0.0, EVIL, 0.0, EVIL, (1,), EVIL,
)  # fmt: skip
SKIPPED = replace(CELL, test="s", outcome="skipped", message="not here")
BROKEN = replace(
    CELL, test="e", outcome="error", launcher="", sites=(), setting=None, off=None, message="RuntimeError: x"
)
ALL = (CELL, FAILED, SKIPPED, BROKEN)
TEXTS: dict[str, Callable[[report.Report], str]] = {
    "term": reportterm.text, "md": reportmd.text, "html": reporthtml.text, "junit": junit.text,
    "json": lambda made: json.dumps(report.as_json(made)),
}  # fmt: skip


def _made(*cells: Cell, baseline: tuple[Cell, ...] | None = None) -> report.Report:
    return report.make(merge.merge(Loaded(cells), None), baseline)


class _Page(HTMLParser):
    """What a browser would make of it: elements with their attributes, and text."""

    VOID = ("meta", "!doctype")

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.comments = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments += 1


@pytest.mark.parametrize("form", TEXTS)
def test_a_failing_cell_is_told_with_all_that_one_needs(form: str) -> None:
    text = TEXTS[form](_made(*ALL))
    if form == "html":
        text = "".join(_Page(text).text)
    elif form == "junit":
        text = "".join(ET.fromstring(text).itertext()) + text
    elif form == "json":
        found = json.loads(text)["failing"]
        text = "\n".join(f"{f['test']} {f['tensor']}{f['index']} {f['message']} {f['replay']}" for f in found)
    for wanted in (
        FAILED.test.rpartition("::")[2],
        "arg0.x[1, 2]",
        "arg0.x: 1 of 6 differ",
        replay(FAILED),
        replay(BROKEN),
    ):
        if form == "term" and wanted == "arg0.x[1, 2]":
            continue  # next to the words that name the tensor and more
        assert wanted in text
    advice.check(replay(FAILED))


def test_a_cell_that_only_says_where_is_told_in_the_terminal_too() -> None:
    assert "arg0.x[1, 2]: differs" in reportterm.text(_made(replace(FAILED, message="differs")))
    assert "arg0.x[1, 2]" in reportterm.text(_made(FAILED))


def test_html_is_whole_and_asks_for_nothing() -> None:
    page = reporthtml.text(_made(*ALL, HOSTILE, baseline=(CELL, replace(CELL, test="gone"))))
    found = _Page(page)
    assert found.open == [] and found.unbalanced == []
    kinds = {tag for tag, _ in found.tags}
    assert not kinds & {"script", "img", "link", "iframe", "object", "a", "form", "base", "svg"}
    assert found.comments == 0
    for tag, attrs in found.tags:
        assert not any(name.startswith("on") or name in ("src", "href", "style", "srcset") for name in attrs), tag
    assert "url(" not in page and "@import" not in page and "://" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    # What the file holds is there as text, and nothing in it was a template.
    assert "<script>alert(1)</script>" in "".join(found.text)
    assert "{{7*7}}" in page and "\x1b" not in page and "\x00" not in page and "\u202e" not in page
    page.encode()


def test_html_colours_every_cell_of_the_map() -> None:
    found = _Page(reporthtml.text(_made(*ALL)))
    classes = [attrs.get("class") for tag, attrs in found.tags if tag == "td" and attrs.get("title")]
    # a:f under off:A has a failure, the rules an error.
    assert classes == ["bad", "bad"]
    only = _Page(reporthtml.text(_made(CELL)))
    assert [a.get("class") for t, a in only.tags if t == "td" and a.get("title")] == ["good"]


def test_long_lists_of_failures_are_cut_and_counted() -> None:
    many = [replace(FAILED, test=f"t{i}") for i in range(reporthtml.LIMIT + 7)]
    page = reporthtml.text(_made(*many))
    assert page.count("<details") == reporthtml.LIMIT and "and 7 more" in page
    assert "and 487 more" in reportterm.text(_made(*many))
    assert "and 457 more" in reportmd.text(_made(*many))


# What Jenkins' junit-10.xsd and the Windy Road schema have in common: the elements, their order, their attributes.
_COUNTS = {"tests", "failures", "errors", "skipped"}
_SCHEMA: dict[str, tuple[set[str], set[str], tuple[str, ...]]] = {
    # element: (attributes that must be there, attributes that may be there, children in their order)
    "testsuites": (_COUNTS - {"skipped"}, {"name", "time"}, ("testsuite",)),
    "testsuite": ({"name", *_COUNTS, "time", "timestamp", "hostname"}, set(), ("properties", "testcase")),
    "properties": (set(), set(), ("property",)),
    "property": ({"name", "value"}, set(), ()),
    "testcase": ({"classname", "name", "time"}, set(), ("skipped", "error", "failure")),
    "failure": ({"type"}, {"message"}, ()),
    "error": ({"type"}, {"message"}, ()),
    "skipped": (set(), {"message"}, ()),
}


def _valid(element: ET.Element) -> None:
    must, may, children = _SCHEMA[element.tag]
    assert must <= element.attrib.keys() <= must | may
    places = [children.index(child.tag) for child in element]
    assert places == sorted(places)
    for name in _COUNTS & element.attrib.keys():
        assert re.fullmatch("[0-9]+", element.attrib[name])
    if "time" in element.attrib:
        assert re.fullmatch(r"[0-9]+\.[0-9]+", element.attrib["time"])
    if element.tag == "testcase":
        assert len(element) <= 1
    for child in element:
        _valid(child)


def test_junit_is_of_the_common_form() -> None:
    root = ET.fromstring(junit.text(_made(*ALL, replace(CELL, run=replace(RUN, pin="0.26.0")))))
    _valid(root)
    assert {k: root.attrib[k] for k in ("tests", "failures", "errors")} == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
    }
    assert [s.attrib["name"] for s in root] == ["ops 0.25.1 cpu", "ops 0.26.0 cpu"]
    for suite in root:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        cases = suite.findall("testcase")
        assert int(suite.attrib["tests"]) == len(cases)
        for kind, name in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[kind]) == len(suite.findall(f"testcase/{name}"))
        assert len({(c.attrib["classname"], c.attrib["name"]) for c in cases}) == len(cases)
    failed = root.find("testsuite/testcase/failure")
    assert failed is not None and failed.attrib["message"] == "arg0.x: 1 of 6 differ"
    case = next(c for c in root.iter("testcase") if c.find("failure") is not None)
    assert (case.attrib["classname"], case.attrib["name"]) == ("0_25_1.cpu.ops.a.f", "test_bound[a:f-y-torch-off:A]")


def test_junit_holds_whatever_a_name_holds() -> None:
    text = junit.text(
        _made(HOSTILE, replace(HOSTILE, outcome="skipped", test="x"), replace(FAILED, message="a\x0b\ufffe\r\nb"))
    )
    root = ET.fromstring(text.encode())
    assert len(list(root.iter("testcase"))) == 3
    names = {c.attrib["name"] for c in root.iter("testcase")}
    assert any("<script>alert(1)</script>" in n and "\\x1b[31m\\x00" in n and "\\ud800" in n for n in names)
    said = next(f.text or "" for f in root.iter("failure") if "\\x0b" in (f.text or ""))
    assert "a\\x0b\\ufffe" in said


@pytest.mark.parametrize(
    ("text", "clean"),
    [("a\tb\nc\rd", "a\tb\nc\rd"), ("\x00\x08\x1f\x7f", "\\x00\\x08\\x1f\x7f"), ("\ud800\uffff", "\\ud800\\uffff"),
     ("\U0001f600é", "\U0001f600é")],
)  # fmt: skip
def test_characters_that_xml_has_not(text: str, clean: str) -> None:
    assert junit.clean(text) == clean


def test_markdown_shows_names_as_they_are() -> None:
    text = reportmd.text(_made(HOSTILE, FAILED))
    # Outside code spans nothing starts an element, a link or another cell of a table.
    assert "\x1b" not in text and "\x00" not in text
    for line in text.splitlines():
        if line.startswith("<details>"):
            assert re.fullmatch(r"<details><summary>[^<>]*</summary>", line)
            continue
        bare = re.sub(r"(`+) ?.*?(?<!`)\1(?!`)", "", line)
        assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", bare), line
        assert not re.search(r"(?<!\\)\]\(", bare), line
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    assert widths[:3] == [11] * 3 and len(set(widths[4:])) <= 2


def test_markdown_takes_no_skipped_cell_for_one_that_ran() -> None:
    other = replace(SKIPPED, test="t", case="t", launcher="b:g")
    text = reportmd.text(_made(CELL, SKIPPED, other))
    assert "| 3, 2 skipped | 0 |" in text
    assert "| `a:f` | 2, 1 skipped |" in text
    assert "| `b:g` | skipped |" in text


def test_markdown_goes_between_its_marks() -> None:
    document = f"a\n{reportmd.BEGIN}\nold\n{reportmd.END}\nb\n"
    made = reportmd.into(document, "new\n")
    assert made == f"a\n{reportmd.BEGIN}\nnew\n{reportmd.END}\nb\n"
    assert reportmd.into(made, "new\n") == made
    for bad in ("", reportmd.BEGIN, f"{reportmd.END}{reportmd.BEGIN}", document + document):
        with pytest.raises(ValueError):
            reportmd.into(bad, "x")


# The command.


@pytest.fixture
def files(tmp_path: Path, content: Content) -> dict[str, Path]:
    series, overlay = merge.hashes_of(content)("0.25.1") or ("", "")
    fresh = replace(RUN, series=series, overlay=overlay)
    found = {}
    for name, cells in {"good": [CELL], "bad": [CELL, FAILED], "stale": [FAILED]}.items():
        run = RUN if name == "stale" else fresh
        found[name] = tmp_path / f"{name}.jsonl"
        with Writer(found[name], append=False) as file:
            file.head(run)
            for cell in cells:
                file.cell(replace(cell, run=run))
    return found


def _report(content: Content, *args: object) -> int:
    return cli.run(["matrix", "report", *map(str, args), "--repo", str(content.root)])


def test_report_command(files: dict[str, Path], content: Content, capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(content, files["good"]) == errors.OK
    assert "1 cells, all passed" in capsys.readouterr().out
    assert _report(content, files["bad"], "--baseline", files["good"], "--json") == errors.USER
    body = json.loads(capsys.readouterr().out)
    assert (body["command"], body["ok"]) == ("matrix report", False)
    assert [f["test"] for f in body["result"]["failing"]] == [FAILED.test]
    assert [f["test"] for f in body["result"]["trend"]["failing"]] == [FAILED.test]
    # The same cell in both files counts once.
    assert _report(content, files["bad"], files["good"], "--format", "json") == errors.USER
    body = json.loads(capsys.readouterr().out)
    assert body["cells"] == 2 and "once" in body["notes"][0]


def test_stale_results_drop_out(files: dict[str, Path], content: Content, capsys: pytest.CaptureFixture[str]) -> None:
    assert _report(content, files["stale"]) == errors.USER
    out = capsys.readouterr().out
    assert "stale, dropped: 1 cell of 0.25.1 (0f0f0f0f0f0f)" in out and "no results of this fork" in out
    assert _report(content, files["stale"], files["good"]) == errors.OK
    assert _report(content, files["stale"], "--keep-stale") == errors.USER
    assert "1 did not pass" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["term", "md", "html", "junit", "json", "record"])
def test_a_report_in_a_file(
    form: str, files: dict[str, Path], content: Content, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert _report(content, files["good"], "--format", form, "--out", out) == errors.OK
    assert "1 cells, all passed" in capsys.readouterr().out
    assert _report(content, files["good"], "--format", form) == errors.OK
    assert capsys.readouterr().out == out.read_text()
    assert _report(content, files["good"], "--format", form, "--out", tmp_path / "none" / "x") == errors.USER
    assert _report(content, files["good"], "--format", form, "--out", tmp_path) == errors.USER
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["term", "md", "html", "junit", "json", "record"])
def test_a_hostile_file_through_the_command(form: str, content: Content, tmp_path: Path) -> None:
    file, out = tmp_path / "evil.jsonl", tmp_path / "out"
    with Writer(file, append=False) as results:
        results.head(HOSTILE.run)
        results.cell(HOSTILE)
    assert _report(content, file, "--keep-stale", "--format", form, "--out", out) == errors.USER
    assert "alert(1)" in out.read_text()
    # It is no result of this fork.
    assert _report(content, file, "--format", form) == errors.USER


@pytest.mark.parametrize("line", ["", "R --format pdf", "R --into x", "R --format md --into x --out y",
                                  "R --format html --json", "R --json --format record"])  # fmt: skip
def test_wrong_usage(line: str, files: dict[str, Path], content: Content) -> None:
    words = [str(files["good"]) if word == "R" else word for word in line.split()]
    assert _report(content, *words) == errors.USAGE


@pytest.mark.parametrize("form", ["term", "html", "junit", "json"])
def test_an_output_that_takes_nothing(form: str, files: dict[str, Path], content: Content) -> None:
    argv = [sys.executable, "-m", "kunlunfork", "matrix", "report", str(files["good"]), "--format", form]
    argv += ["--repo", str(content.root)]
    env = {**os.environ, "PYTHONPATH": str(REPO / "scripts")}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == errors.USER and done.stderr.count(b"the result cannot be written") == 1
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *argv], capture_output=True, env=env, check=False)
    assert closed.returncode == errors.OK and b"Traceback" not in closed.stderr


def test_into_a_file(files: dict[str, Path], content: Content, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "README.md"
    file.write_text("no place")
    assert _report(content, files["good"], "--format", "md", "--into", file) == errors.USER
    assert "has no place for the table" in capsys.readouterr().err
    assert file.read_text() == "no place"
    file.write_text(f"x\n{reportmd.BEGIN}\n{reportmd.END}\n")
    assert _report(content, files["good"], "--format", "md", "--into", file) == errors.OK
    assert "| 0.25.1 | cpu | ops | 1 | torch | 1 | 0 |" in file.read_text()
