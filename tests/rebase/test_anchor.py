from __future__ import annotations

from pathlib import Path

import pytest
from test_scope import EDIT, LOOKALIKE, OLD, edited, merge_file

from kunlunfork.rebase import anchor, scope

OURS = edited(OLD, *EDIT)


def carried(old: bytes, ours: bytes, new: bytes) -> bytes | None:
    """What `anchor.merge` makes; it must be something that the scope check takes."""
    merged = anchor.merge(b"a.py", old, ours, new)
    if merged is not None:
        assert scope.check(b"a.py", old, ours, new, merged) is None
    return merged


@pytest.mark.parametrize(
    "new",
    [
        edited(OLD, b"    return out\n", b"    return out.last()\n"),
        edited(OLD, b"        out = model(batch)\n", b"        out = model(batch, True)\n"),
        edited(OLD, b"    return out\n", b"        check(batch)\n    return out\n"),
        edited(OLD, b"    return out\n", b"        batch.free()\n\n    return out.last()\n"),
    ],
)
def test_an_insertion_goes_after_the_statement_that_stayed(new: bytes) -> None:
    assert carried(OLD, OURS, new) == edited(new, *EDIT)


@pytest.mark.parametrize(
    "new",
    [
        LOOKALIKE,
        edited(OLD, b"        batch = out.next()\n", b"        batch = out.then()\n"),
        edited(OLD, b"        batch = out.next()\n", b"        batch = out.next()\n        batch = out.next()\n"),
        edited(OLD, b"def run(", b"def walk("),
        edited(OLD, b"    for step in range(3):\n", b"    while model.on:\n"),
        edited(OLD, b"import os\n", b"import os,\n"),
        OLD.replace(b"    ", b"  "),
    ],
)
def test_no_place_or_no_single_one(new: bytes) -> None:
    assert carried(OLD, OURS, new) is None


def test_a_neighbour_that_occurs_once_in_its_block_and_again_in_another() -> None:
    old = b"def f(a):\n    if a:\n        go()\n        last()\n    else:\n        go()\n        end()\n    return a\n"
    ours = edited(old, b"        go()\n        end()\n", b"        go()\n        mark()\n        end()\n")
    new = old.replace(b"end()", b"end(1)").replace(b"last()", b"last(1)")
    assert carried(old, ours, new) == edited(new, b"        end(1)\n", b"        mark()\n        end(1)\n")


@pytest.mark.parametrize(
    "replacement",
    [b"        out = mine(batch)\n", b"", b"        if batch:\n            out = mine(batch)\n"],
    ids=["replaced", "deleted", "wrapped"],
)
def test_a_statement_whose_neighbours_changed(replacement: bytes, tmp_path: Path) -> None:
    line = b"        out = model(batch)\n"
    ours = edited(OLD, line, replacement)
    new = edited(OLD, b"        batch = out.next()\n", b"        batch = out.then()\n")
    assert merge_file(tmp_path, OLD, ours, new) is None
    assert carried(OLD, ours, new) == edited(new, line, replacement)
    assert carried(OLD, ours, edited(new, b"model(batch)", b"model(batch, 1)")) is None


def test_the_same_statement_twice_is_told_by_its_neighbour() -> None:
    old = b"def f():\n    a()\n    go()\n    b()\n    c()\n    go()\n    d()\n"
    ours = edited(old, b"    go()\n    d()\n", b"    stop()\n    d()\n")
    new = edited(old, b"    c()\n", b"    c(1)\n")
    assert carried(old, ours, new) == edited(new, b"    go()\n    d()\n", b"    stop()\n    d()\n")
    assert carried(old, ours, edited(new, b"    d()\n", b"    d(1)\n")) is None


def test_bytes_of_every_kind_are_kept() -> None:
    old, new = (
        b"# coding: latin-1\r\ndef f():\r\n    a = 'h\xe9'\r\n    b = 1\r\n    return %s" % value
        for value in (b"a", b"b")
    )
    ours = edited(old, b"    b = 1\r\n", b"    b = 1\r\n    m = '\xe9'\r\n")
    assert carried(old, ours, new) == edited(new, b"    b = 1\r\n", b"    b = 1\r\n    m = '\xe9'\r\n")


MOVED = edited(OLD, b"def stop(model):\n    model.close()\n", b"")


def test_a_function_that_moved_to_another_file() -> None:
    run = OLD[OLD.index(b"def run") : OLD.index(b"\n\ndef stop")]
    there = b"import sys\n\n\n" + edited(run, b"    return out\n", b"    return out.last()\n")
    found = anchor.merge_moved(b"a.py", OLD, OURS, {b"b.py": there, b"c.py": b"def stop(model):\n    pass\n"})
    assert found == (b"b.py", edited(there, *EDIT))
    assert anchor.merge_moved(b"a.py", OLD, OURS, {b"b.py": there, b"c.py": there}) is None, "two places"
    assert anchor.merge_moved(b"a.py", OLD, OURS, {b"a.py": there}) is None
    both = edited(OURS, b"import os\n", b"import os\nimport mine\n")
    assert anchor.merge_moved(b"a.py", OLD, both, {b"b.py": there}) is None, "an import does not move"


HEAD = b"""\
import os

import first
import second
from third import (
    a,
)

x = 1
"""


@pytest.mark.parametrize("there", [b"import first\n", b"from third import (\n    a,\n)\n"])
def test_an_import_goes_to_any_import_that_stayed(there: bytes) -> None:
    ours = edited(HEAD, b"import second\n", b"import second\nimport mine\n")
    new = b"import os\n\nimport zero\n" + there + b"import last\n\nx = 1\n"
    merged = carried(HEAD, ours, new)
    assert merged is not None
    assert edited(merged, b"import mine\n", b"") == new
    assert carried(HEAD, ours, b"import zero\n\nx = 2\n") is None, "none stayed"
    assert carried(HEAD, ours, new.replace(b"import os\n", b"x = 0\n").replace(there, there + there)) is None


def test_star_and_future_imports_keep_their_places() -> None:
    for line in (b"from mine import *\n", b"from __future__ import mine\n"):
        ours = edited(HEAD, b"import second\n", b"import second\n" + line)
        new = edited(edited(HEAD, b"import second\n", b"import other\n"), b"from third", b"from fourth")
        assert carried(HEAD, ours, new) is None


DECORATED = b"""\
class A:
    @first
    @second(1)
    def f(self, a):
        return a

    def g(self):
        return 1
"""


@pytest.mark.parametrize(
    ("at", "change", "expected"),
    [
        (b"    def f(self, a):\n", (b"a):\n        return a", b"b):\n        return b"), b"    def f(self, b):\n"),
        (b"    def f(self, a):\n", (b"@second(1)", b"@second(2)"), b"    def f(self, a):\n"),
        (b"    @first\n", (b"    @first\n", b"    @other\n"), b"    @other\n"),
        (b"    @second(1)\n", (b"    @first\n", b"    @other\n    @first\n"), b"    @second(1)\n"),
        (b"    @second(1)\n", (b"    @first\n", b""), b"    @second(1)\n"),
        (b"    @first\n", (b"    @first\n", b"    @other\n    @first\n"), None),
        (b"    @second(1)\n", (b"    @second(1)\n", b"    @other\n    @second(1)\n"), None),
        (b"    @second(1)\n", (b"    @first\n    @second(1)\n", b"    @other\n"), None),
        (b"    @first\n", (b"def f(", b"def h("), None),
        (b"    def g(self):\n", (b"    def g(self):\n", b"    @other\n    def g(self):\n"), None),
        (b"    def g(self):\n", (b"g(self):\n        return 1", b"g(a):\n        return a"), b"    def g(a):\n"),
    ],
)  # fmt: skip
def test_a_decorator(at: bytes, change: tuple[bytes, bytes], expected: bytes | None) -> None:
    """Inserted before the line `at`; upstream makes `change`; the decorator is then before the line `expected`."""
    ours = edited(DECORATED, at, b"    @mine\n" + at)
    new = edited(DECORATED, *change)
    merged = carried(DECORATED, ours, new)
    assert merged == (None if expected is None else edited(new, expected, b"    @mine\n" + expected))


def test_another_function_of_that_name_in_another_file() -> None:
    run = OLD[OLD.index(b"def run") : OLD.index(b"\n\ndef stop")]
    first = edited(OLD, b"    model.eval()\n", b"    mark(model)\n    model.eval()\n")
    other = b"def run(model, batch):\n    start(model)\n    for step in range(3):\n        wait(step)\n"
    assert anchor.merge_moved(b"a.py", OLD, first, {b"b.py": other}) is None
    assert anchor.merge_moved(b"a.py", OLD, first, {b"b.py": run}) == (
        b"b.py",
        edited(run, b"    model.eval()\n", b"    mark(model)\n    model.eval()\n"),
    )
    tiny = edited(OLD, b"    model.close()\n", b"    model.close()\n    mark(model)\n")
    assert anchor.merge_moved(b"a.py", OLD, tiny, {b"b.py": b"def stop(model):\n    model.close()\n"}) is None


def test_a_method_and_a_decorator_that_are_added_to_a_class_that_moved() -> None:
    body = b"    def f(self):\n        one()\n        two()\n        return three()\n"
    old = b"import os\n\n\nclass A:\n" + body + b"\n\nx = 1\n"
    ours = edited(old, body, b"    @mine\n" + body + b"\n    def g(self):\n        mark()\n")
    new = b"y = 1\n\n\nclass A:\n" + edited(body, b"return three()", b"return four()") + b"\n\nz = 3\n"
    found = anchor.merge_moved(b"a.py", old, ours, {b"b.py": new})
    assert found is not None
    assert found[1] == edited(
        edited(new, b"    def f", b"    @mine\n    def f"), b"four()\n", b"four()\n\n    def g(self):\n        mark()\n"
    )
    assert anchor.merge_moved(b"a.py", old, ours, {b"b.py": new.replace(b"class A", b"class B")}) is None
