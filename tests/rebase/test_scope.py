from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kunlunfork.rebase import scope

# An upstream in which merging text goes wrong: the function that we change is rewritten, a look-alike added.
OLD = b"""\
import os


def run(model, batch):
    model.eval()
    for step in range(3):
        out = model(batch)
        batch = out.next()
    return out


def stop(model):
    model.close()
"""
EDIT = (b"        batch = out.next()\n", b"        batch = out.next()\n        mark(batch)\n")
LOOKALIKE = b"""\
import os


def warmup(model, batch):
    model.eval()
    for step in range(3):
        out = model(batch)
        batch = out.next()
    return out


def run(model, batch):
    return Runner(model).run(batch)


def stop(model):
    model.close()
"""


def edited(source: bytes, old: bytes, new: bytes) -> bytes:
    assert source.count(old) == 1, (old, source)
    return source.replace(old, new)


def merge_file(folder: Path, old: bytes, ours: bytes, new: bytes) -> bytes | None:
    """What git makes of it; None for a conflict."""
    for name, data in (("new", new), ("old", old), ("ours", ours)):
        (folder / name).write_bytes(data)
    done = subprocess.run(
        ["git", "merge-file", "-p", "new", "old", "ours"], cwd=folder, capture_output=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def test_a_merge_into_a_lookalike(tmp_path: Path) -> None:
    ours = edited(OLD, *EDIT)
    merged = merge_file(tmp_path, OLD, ours, LOOKALIKE)
    assert merged is not None and merged != LOOKALIKE, "git takes it"
    found = scope.check(b"a.py", OLD, ours, LOOKALIKE, merged)
    assert found == "the change of run would land in warmup, line 9"
    assert scope.check(b"a.txt", OLD, ours, LOOKALIKE, merged) is None, "only Python has scopes"


@pytest.mark.parametrize(
    ("new", "merges"),
    [
        (OLD, True),
        (edited(OLD, b"import os\n", b"import os\nimport sys\n\n\ndef first():\n    return 1\n"), True),
        (edited(OLD, b"    model.eval()\n", b"    model.train()\n"), True),
        (edited(OLD, b"def stop(model):\n", b"def stop(model, now=False):\n"), True),
        (edited(OLD, b"range(3)", b"range(4)"), True),
        (edited(OLD, *EDIT), True),  # upstream did the same
    ],
)
def test_merges_that_are_right(new: bytes, merges: bool, tmp_path: Path) -> None:
    ours = edited(OLD, *EDIT)
    merged = merge_file(tmp_path, OLD, ours, new)
    assert merged is not None
    assert scope.check(b"a.py", OLD, ours, new, merged) is None


def test_every_other_place_is_refused() -> None:
    """The edit put after every line of the file: only where it was made is it accepted."""
    ours = edited(OLD, *EDIT)
    lines = OLD.splitlines(keepends=True)
    accepted = []
    for at in range(len(lines) + 1):
        merged = b"".join([*lines[:at], b"        mark(batch)\n", *lines[at:]])
        if scope.check(b"a.py", OLD, ours, OLD, merged) is None:
            accepted.append(at)
    assert accepted == [lines.index(EDIT[0]) + 1]


PROPERTY = b"""\
class A:
    @property
    def size(self):
        check(self)
        return self._size

    @size.setter
    def size(self, value):
        check(self)
        self._size = value
"""


def test_siblings_of_the_same_name() -> None:
    ours = edited(PROPERTY, b"        return self._size\n", b"        mark(1)\n        return self._size\n")
    new = edited(PROPERTY, b"        self._size = value\n", b"        return self._size\n")
    new = edited(new, b"    @property\n    def size(self):\n        check(self)\n        return self._size\n\n", b"")
    new = new + b"\n    @property\n    def size(self):\n        return 0\n"
    merged = edited(new, b"        return self._size\n", b"        mark(1)\n        return self._size\n")
    found = scope.check(b"a.py", PROPERTY, ours, new, merged)
    assert found == "the change of A.size would land in another of that name, line 5"


@pytest.mark.parametrize("swap", [False, True])
def test_overloads_that_change_places(swap: bool) -> None:
    first, second = (
        b"    @overload\n    def get(self, key: %s):\n        note(%s)\n\n" % (kind, kind) for kind in (b"int", b"str")
    )
    old = b"class A:\n" + first + second
    ours = edited(old, b"        note(int)\n", b"        note(int)\n        mark(1)\n")
    new = b"class A:\n" + (second + first if swap else first + second)
    right = edited(new, b"        note(int)\n", b"        note(int)\n        mark(1)\n")
    wrong = edited(new, b"        note(str)\n", b"        note(str)\n        mark(1)\n")
    assert scope.check(b"a.py", old, ours, new, right) is None
    assert scope.check(b"a.py", old, ours, new, wrong) is not None


def test_another_block_of_the_same_function() -> None:
    old = b"def f(a):\n    if a:\n        go(1)\n    else:\n        stop(1)\n    end()\n"
    ours = edited(old, b"        go(1)\n", b"        go(1)\n        mark()\n")
    new = edited(old, b"    end()\n", b"    while a:\n        go(1)\n        last()\n    end()\n")
    right = new.replace(b"        go(1)\n", b"        go(1)\n        mark()\n", 1)
    wrong = edited(new, b"        last()\n", b"        mark()\n        last()\n")
    assert scope.check(b"a.py", old, ours, new, right) is None
    assert "another block" in (scope.check(b"a.py", old, ours, new, wrong) or "")


def test_a_statement_that_became_text() -> None:
    old = b"def f():\n    a()\n    b()\n"
    ours = edited(old, b"    a()\n", b"    a()\n    mark()\n")
    new = b'def f():\n    text = """\n    a()\n    b()\n    """\n    c()\n'
    merged = edited(new, b"    a()\n", b"    a()\n    mark()\n")
    assert scope.check(b"a.py", old, ours, new, merged) is not None


def test_another_table_of_the_module() -> None:
    old = b'A = {\n    "x": 1,\n    "y": 2,\n}\nB = {\n    "z": 1,\n}\n'
    ours = edited(old, b'    "x": 1,\n', b'    "x": 1,\n    "mark": 3,\n')
    wrong = edited(old, b'    "z": 1,\n', b'    "mark": 3,\n    "z": 1,\n')
    assert scope.check(b"a.py", old, ours, old, ours) is None
    assert scope.check(b"a.py", old, ours, old, wrong) is not None


@pytest.mark.parametrize(
    ("merged", "reason"),
    [
        (OLD, "not in the merge"),
        (edited(OLD, b"import os\n", b"<<<<<<< ours\nimport os\n"), "conflict marker: <<<<<<< ours"),
        (edited(OLD, b"import os\n", b"import os\r\n<<<<<<<\r\n"), "conflict marker: <<<<<<<"),
        (edited(OLD, EDIT[0], b"        batch = out.next()\n      mark(batch)\n"), "does not parse"),
        (edited(OLD, EDIT[0], EDIT[0] + b"        mark(batch)\n        mark(batch)\n"), "what the edit does not"),
        (edited(edited(OLD, *EDIT), b"import os\n", b""), "not in the merge"),
        (edited(edited(OLD, *EDIT), b"model.close()", b"model.open()"), "what the edit does not"),
        (edited(OLD, *EDIT).replace(b"import os\n", b"import os\rimport sys\n"), "does not parse"),
    ],
)
def test_merges_that_are_wrong(merged: bytes, reason: str) -> None:
    found = scope.check(b"a.py", OLD, edited(OLD, *EDIT), OLD, merged)
    assert found is not None and reason in found


def test_lines_that_only_look_like_markers() -> None:
    rest = b'"""\nTitle\n=======\n"""\n'
    assert scope.check(b"a.py", rest, rest + b"a = 1\n", rest, rest + b"a = 1\n") is None
    text = b"<<<<<<< shown\n"
    assert scope.check(b"a.rst", text, text + b"more\n", text, text + b"more\n") is None, "upstream's own"


def test_a_deletion_that_upstream_made_as_well_and_another_that_it_did_not() -> None:
    ours = edited(edited(OLD, b"import os\n", b""), b"    model.close()\n", b"    model.shut()\n")
    new = edited(OLD, b"import os\n", b"")
    assert scope.check(b"a.py", OLD, ours, new, ours) is None
    assert scope.check(b"a.py", OLD, ours, OLD, edited(OLD, b"import os\n", b"")) is not None


def test_many_changes_and_deep_nesting() -> None:
    old = b"".join(b"def f%d():\n    return %d\n\n\n" % (i, i) for i in range(2000))
    ours = old.replace(b"    return", b"    mark()\n    return")
    assert scope.check(b"a.py", old, ours, old, ours) is None
    deep = b"x = " + b"(" * 5000 + b")" * 5000 + b"\n"
    assert "does not parse" in (scope.check(b"a.py", deep, deep + b"a\n", b"b\n" + deep, b"b\n" + deep + b"a\n") or "")


def test_decorators_and_signatures_belong_to_their_function() -> None:
    old = b"class A:\n    @first\n    @second\n    def f(\n        self,\n    ):\n        return 1\n"
    ours = edited(old, b"    @second\n", b"    @mine\n    @second\n")
    assert scope.check(b"a.py", old, ours, old + b"\n", ours + b"\n") is None
    renamed = old.replace(b"def f(", b"def g(")
    merged = ours.replace(b"def f(", b"def g(")
    found = scope.check(b"a.py", old, ours, renamed, merged)
    assert found == "the change of A.f would land in A.g, line 3"
    lower = edited(old, b"    @second\n", b"    @second\n    @mine\n")
    swapped = edited(old, b"    @first\n    @second\n", b"    @second\n    @first\n")
    wrong = edited(swapped, b"    @first\n", b"    @first\n    @mine\n")
    assert scope.check(b"a.py", old, lower, swapped, wrong) is None, "next to the function on either side"
    third = edited(old, b"    @first\n    @second\n", b"    @third\n    @fourth\n")
    assert (
        scope.check(b"a.py", old, ours, third, edited(third, b"    @third\n", b"    @mine\n    @third\n")) is not None
    )
    signed = edited(old, b"        self,\n", b"        self,\n        mine=1,\n")
    assert scope.check(b"a.py", old, signed, renamed, signed.replace(b"def f(", b"def g(")) is not None
