from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchkit import Files, Pair, mode_and_data, patch

from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry, blob_id
from kunlunfork.preimage import Tree, Upstream, apply_hunks


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def upstream(files: Files) -> Upstream:
    def get(path: bytes) -> tuple[Entry, bytes] | None:
        if path not in files:
            return None
        mode, data = mode_and_data(files[path])
        return Entry(mode, blob_id(data)), data

    return get


def made(pair: Pair, old: Files, new: Files, *options: str) -> Patch:
    return parse_patch("x.patch", patch(pair, old, new, *options))


def faults(tree: Tree, parsed: Patch) -> list[tuple[str, int | None]]:
    return [(m.code, m.line) for step in tree.apply(parsed) for m in step.mismatches]


def assert_tree(tree: Tree, files: Files, names: Mapping[bytes, object]) -> None:
    for name in names:
        have = tree.get(name)
        if name not in files:
            assert have is None
            continue
        mode, data = mode_and_data(files[name])
        assert have is not None and have.entry == Entry(mode, blob_id(data))
        assert have.data in (data, None)


_text = st.lists(st.sampled_from([b"x\n", b"y\n", b"\r\n", b"\n", b"-- \n", b"z"]), max_size=12).map(b"".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_text, _text, st.sampled_from(["-U3", "-U0", "-U1"]))
def test_hunks_of_any_two_texts(pair: Pair, old: bytes, new: bytes, context: str) -> None:
    if old == new:
        return
    (file,) = made(pair, {b"f": old}, {b"f": new}, context).files
    assert apply_hunks(old, file.hunks) == new


def test_a_hunk_is_never_looked_for_elsewhere(pair: Pair) -> None:
    old = b"".join(b"%d\n" % i for i in range(20))
    (file,) = made(pair, {b"f": old}, {b"f": old.replace(b"10\n", b"ten\n")}).files
    assert apply_hunks(b"new\n" + old, file.hunks) == file.hunks[0].line == 5
    assert apply_hunks(old[:9], file.hunks) == 5


def test_every_kind(pair: Pair) -> None:
    body = b"".join(b"line %d\n" % i for i in range(40))
    old: Files = {
        b"m": b"1",
        b"mode": b"m",
        b"a": body,
        b"c": body + b"x\n",
        b"gone": b"g\n",
        b"bin": b"\0" * 9,
        b"t": b"t\n",
    }
    new: Files = {
        b"m": b"2", b"mode": (EXECUTABLE, b"m"), b"b": body, b"c": body + b"y\n", b"copy": body + b"x\n",
        b"bin": b"\0" * 8, b"t": (SYMLINK, b"m"), b"new": b"n\n", b"empty": b"",
    }  # fmt: skip
    parsed = made(pair, old, new, "-M", "-C")
    assert {f.kind for f in parsed.files} == {"modify", "mode", "rename", "copy", "delete", "add"}
    tree = Tree(upstream(old))
    assert faults(tree, parsed) == []
    assert_tree(tree, new, {**old, **new})


def test_two_files_change_places() -> None:
    old: Files = {b"a": b"a\n", b"b": b"b\n"}
    swap = b"".join(
        b"diff --git a/%s b/%s\nsimilarity index 100%%\nrename from %s\nrename to %s\n" % (x, y, x, y)
        for x, y in ((b"a", b"b"), (b"b", b"a"))
    )
    tree = Tree(upstream(old))
    assert faults(tree, parse_patch("x.patch", swap)) == []
    assert_tree(tree, {b"a": b"b\n", b"b": b"a\n"}, old)


def test_a_series_and_a_file_twice_in_one_patch(pair: Pair) -> None:
    states: list[Files] = [{b"f": b"1\n"}, {b"f": b"2\n"}, {b"f": b"3\n"}, {b"f": b"3\n", b"g": b"g\n"}, {b"g": b"g\n"}]
    patches = [patch(pair, a, b) for a, b in pairwise(states)]
    tree = Tree(upstream(states[0]))
    assert [faults(tree, parse_patch("x.patch", p)) for p in patches] == [[]] * 4
    assert_tree(tree, states[-1], {b"f": 0, b"g": 0})
    tree = Tree(upstream(states[0]))
    assert faults(tree, parse_patch("x.patch", patches[0] + patches[1])) == []
    assert_tree(tree, states[2], {b"f": 0})


def test_faults(pair: Pair) -> None:
    parsed = made(pair, {b"f": b"1\n"}, {b"f": b"2\n"})
    assert faults(Tree(upstream({})), parsed) == [("preimage", None)]
    assert faults(Tree(upstream({b"f": b"0\n"})), parsed) == [("preimage", None)]
    assert faults(Tree(upstream({b"f": (EXECUTABLE, b"1\n")})), parsed) == [("preimage", None)]
    added = made(pair, {}, {b"f": b"1\n"})
    assert faults(Tree(upstream({b"f": b"1\n"})), added) == [("preimage", None)]
    renamed = made(pair, {b"f": b"1\n" * 9}, {b"g": b"1\n" * 9}, "-M")
    assert faults(Tree(upstream({b"f": b"1\n", b"g": b""})), renamed) == [("preimage", None)]
    assert faults(Tree(upstream({})), renamed) == [("preimage", None)]


def test_a_patch_that_was_edited_by_hand(pair: Pair) -> None:
    old: Files = {b"f": b"1\n2\n3\n"}
    raw = patch(pair, old, {b"f": b"1\ntwo\n3\n"})
    edited = parse_patch("x.patch", raw.replace(b"+two", b"+zwei"))
    assert faults(Tree(upstream(old)), edited) == [("postimage", None)]
    edited = parse_patch("x.patch", raw.replace(b"-2\n", b"-zwei\n"))
    assert faults(Tree(upstream(old)), edited) == [("hunk", 5)]
    added = parse_patch("x.patch", patch(pair, {}, {b"f": b"1\n"}).replace(b"+1\n", b"+2\n"))
    assert faults(Tree(upstream({})), added) == [("postimage", None)]
    gone = patch(pair, old, {}).replace(b"-1,3", b"-1,2").replace(b"-3\n", b"")
    assert faults(Tree(upstream(old)), parse_patch("x.patch", gone)) == [("hunk", 6)]


def test_one_fault_does_not_become_many(pair: Pair) -> None:
    first, second = (patch(pair, {b"f": a}, {b"f": b}) for a, b in ((b"1\n", b"2\n"), (b"2\n", b"3\n")))
    tree = Tree(upstream({b"f": b"other\n"}))
    assert faults(tree, parse_patch("1", first)) == [("preimage", None)]
    assert faults(tree, parse_patch("2", second)) == []


def test_short_ids_are_compared_as_far_as_they_go(pair: Pair) -> None:
    raw = patch(pair, {b"f": b"1\n"}, {b"f": b"2\n"})
    for blob in (blob_id(b"1\n"), blob_id(b"2\n")):
        raw = raw.replace(blob.encode(), blob[:9].encode())
    assert faults(Tree(upstream({b"f": b"1\n"})), parse_patch("x", raw)) == []
    assert faults(Tree(upstream({b"f": b"0\n"})), parse_patch("x", raw)) == [("preimage", None)]


def test_a_binary_patch_leaves_bytes_that_are_not_known(pair: Pair) -> None:
    tree = Tree(upstream({b"f": b"\0" * 9}))
    (step,) = tree.apply(made(pair, {b"f": b"\0" * 9}, {b"f": b"\0text"}))
    assert step.before is not None and step.before.data == b"\0" * 9
    after = tree.get(b"f")
    assert after is not None and after.data is None
    assert after.entry == Entry(REGULAR, blob_id(b"\0text"))
