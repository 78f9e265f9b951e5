from __future__ import annotations

import pytest
from test_anchor import carried
from test_scope import edited

from kunlunfork.rebase import elements, linediff, outline, scope

IMPORTS = b"from a import one, two\nfrom b import (\n    three,\n    four,\n)\n\nx = 1\n"
LONG = IMPORTS[IMPORTS.index(b"from b") : IMPORTS.index(b"\nx")]


@pytest.mark.parametrize(
    ("edit", "change", "expected"),
    [
        # in one line
        ((b"one, two", b"one, mine, two"), (b"one, two", b"one, other, two"), b"from a import one, mine, other, two\n"),
        ((b"one, two", b"one, two, mine"), (b"one, two", b"one"), b"from a import one, mine\n"),
        ((b"one, two", b"one, mine, two"), (b"one, two", b"zero, two"), b"from a import zero, mine, two\n"),
        ((b"one, two", b"one, mine as m, two"), (b"one, two", b"zero"), b"from a import zero, mine as m\n"),
        ((b"one, two", b"mine, one, two"), (b"one, two", b"one, three"), b"mine, one, three"),
        ((b"one, two", b"one, two, mine"), (b"one, two", b"(one, two, three)"), b"(one, two, mine, three)"),
        ((b"one, two", b"one, two, mine"), (b"one, two", b"one, two  # why"), b"import one, two, mine  # why\n"),
        # a line each
        (
            (b"    four,\n", b"    four,\n    mine,\n"),
            (b"    four,\n", b"    four,\n    z,\n"),
            b"    four,\n    mine,\n    z,\n",
        ),
        ((b"    four,\n", b"    mine,\n    four,\n"), (b"    four,\n", b"    z\n"), b"    three,\n    mine,\n    z\n)"),
        (
            (b"    four,\n", b"    four,\n    mine,\n"),
            (b"    three,\n    four,\n", b"    z\n"),
            b"    z,\n    mine,\n)",
        ),
        (
            (b"    four,\n", b"    four,\n    mine,\n"),
            (LONG, b"from b import four, six\n"),
            b"from b import four, mine, six\n",
        ),
        (
            (b"    three,\n", b"    mine,\n    three,\n"),
            (b"    three,\n", b"    three,\n    z,\n"),
            b"(\n    mine,\n    three,\n",
        ),
        # not told, or another edit
        ((b"one, two", b"one, mine, two"), (b"from a", b"from c"), None),
        ((b"one, two", b"one, mine, two"), (b"one, two", b"mine, other"), None),
        ((b"one, two", b"one, mine"), (b"one, two", b"one, two, three"), None),
        ((b"one, two", b"one, mine, two"), (b"one, two", b"*"), None),
        ((b"one, two", b"one, mine, two"), (b"one, two\n", b"one\nfrom a import two, three\n"), None),
        ((b"import one, two", b"import one, mine, two"), (b"import one, two", b"import one; y = 2"), None),
    ],
)
def test_a_name_that_is_imported(
    edit: tuple[bytes, bytes], change: tuple[bytes, bytes], expected: bytes | None
) -> None:
    merged = carried(IMPORTS, edited(IMPORTS, *edit), edited(IMPORTS, *change))
    if expected is None:
        assert merged is None
    else:
        assert merged is not None and merged.count(b"mine") == 1 and expected in merged


CODE = b"""\
class A:
    def f(self, a, b=1, *, c=2, **rest):
        return a

    def g(
        self,
        a: int,
        b: int = 1,
    ) -> int:
        return a
"""
SIGNATURE = b"f(self, a, b=1, *, c=2, **rest)"


@pytest.mark.parametrize(
    ("edit", "change", "expected"),
    [
        (
            (b"b=1, *", b"b=1, mine=0, *"),
            (b"self, a,", b"self, a: int,"),
            b"f(self, a: int, b=1, mine=0, *, c=2, **rest)",
        ),
        ((b"b=1, *", b"b=1, mine=0, *"), (b"**rest)", b"d=3, **rest)"), b"b=1, mine=0, *, c=2, d=3, **rest"),
        ((b"c=2, **", b"c=2, mine=0, **"), (b"c=2, **", b"c=2, d=3, **"), b"c=2, mine=0, d=3, **rest"),
        ((b"c=2, **", b"mine=0, c=2, **"), (b"c=2, **", b"c=(2, 3), **"), b"*, mine=0, c=(2, 3), **rest"),
        (
            (b"        b: int = 1,\n", b"        b: int = 1,\n        mine=0,\n"),
            (b"b: int = 1", b"b: str = 1"),
            b"b: str = 1,\n        mine=0,\n    ) -> int",
        ),
        (
            (b"        b: int = 1,\n", b"        b: int = 1,\n        mine=0,\n"),
            (b"b: int = 1,", b"b: str = 1"),
            b"b: str = 1,\n        mine=0,\n    ) -> int",
        ),
        # upstream added a parameter at the same place: which comes first matters
        ((b"b=1, *", b"b=1, mine=0, *"), (b"b=1, *", b"b=1, other=0, *"), None),
        (
            (b"        b: int = 1,\n", b"        b: int = 1,\n        mine=0,\n"),
            (b"b: int = 1,", b"b: int = 1, c=2"),
            None,
        ),
        ((b"c=2, **", b"c=2, mine=0, **"), (b"*, c=2, **", b"c=3, *, d=4, **"), b"*, d=4, mine=0, **rest"),
        ((b"b=1, *", b"b=1, mine=0, *"), (b"b=1, *", b"b=1, mine=3, *"), None),
        ((b"b=1, *", b"b=1, mine=0, *"), (b"def f(self", b"def h(self"), None),
        ((b"b=1, *", b"b=2, mine=0, *"), (b"self, a,", b"self, a: int,"), None),
    ],
)
def test_a_parameter(edit: tuple[bytes, bytes], change: tuple[bytes, bytes], expected: bytes | None) -> None:
    merged = carried(CODE, edited(CODE, *edit), edited(CODE, *change))
    if expected is None:
        assert merged is None
    else:
        assert merged is not None and merged.count(b"mine") == 1 and expected in merged


def test_two_changes_of_one_list() -> None:
    ours = edited(edited(IMPORTS, b"    three,\n", b"    three,\n    m1,\n"), b"    four,\n", b"    four,\n    m2,\n")
    new = edited(IMPORTS, b"    four,\n", b"    z,\n")
    assert carried(IMPORTS, ours, new) == edited(
        new, b"    three,\n    z,\n", b"    three,\n    m1,\n    z,\n    m2,\n"
    )


def test_the_check_takes_only_that_addition() -> None:
    ours = edited(IMPORTS, b"one, two", b"one, mine, two")
    new = edited(IMPORTS, b"one, two", b"one, other, two")
    right = edited(new, b"one, other", b"one, mine, other")
    assert scope.check(b"a.py", IMPORTS, ours, new, right) is None
    for wrong in (
        edited(new, b"one, other", b"one, mine"),
        edited(right, b"mine", b"mine, more"),
        edited(new, b"    four,\n", b"    four,\n    mine,\n"),
        edited(right, b"x = 1", b"x = 2"),
    ):
        assert scope.check(b"a.py", IMPORTS, ours, new, wrong) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"from a import b",
        b"from a import (b)\r\n",
        b"from a import b, \\\n    c\n",
        b"from . import (  # x\n  b, # y\n)\n",
    ],
)
def test_layouts(line: bytes) -> None:
    side = outline.read(line)
    assert side is not None
    listed = elements.read(side.lines, side.module.units[0])
    assert listed is not None and listed.keys[0] == "b"
    assert (listed.first, listed.last) == (0, len(linediff.cut(line)))


@pytest.mark.parametrize(
    "line",
    [b"x = 1\n", b"from a import *\n", b"from a import b; c = 1\n", b"# coding: latin-1\nfrom a import b  # \xe9\n"],
)
def test_no_list(line: bytes) -> None:
    side = outline.read(line)
    assert side is not None
    assert elements.read(side.lines, side.module.units[0]) is None or b";" in line
