"""What a series makes, from its text alone, is what git makes of it."""

from __future__ import annotations

import contextlib
import itertools
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchkit import Files as Made
from patchkit import Pair, mode_and_data, patch

from kunlunfork import content as contents
from kunlunfork import fork as forks
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry, blob_id
from kunlunfork.stages import Files, Stage, by_git, from_text, stages
from kunlunfork.store import Base, Store

BODY = b"".join(b"line %d\n" % i for i in range(30))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def stage(files: Made) -> Stage:
    both = {path: mode_and_data(value) for path, value in files.items()}
    return {path: (Entry(mode, blob_id(data)), data) for path, (mode, data) in both.items()}


def series(pair: Pair, *trees: Made, options: tuple[str, ...] = ()) -> list[Patch]:
    steps = enumerate(itertools.pairwise(trees))
    return [parse_patch(f"{i}.patch", patch(pair, old, new, *options)) for i, (old, new) in steps]


def touched(patches: list[Patch], files: Made) -> Stage:
    named = {p for made in patches for f in made.files for p in (f.old_path, f.new_path)}
    return {path: have for path, have in stage(files).items() if path in named}


_data = st.sampled_from([b"", b"a\n", b"a\nb", b"a\r\nb\n", BODY, BODY + b"end", b"\xe9\x0c\n" + BODY, BODY[:-1]])
_value = st.one_of(
    _data.map(lambda data: (REGULAR, data)),
    _data.map(lambda data: (EXECUTABLE, data)),
    st.sampled_from([b"a", b"d/e"]).map(lambda target: (SYMLINK, target)),
)


@st.composite
def _files(draw: st.DrawFn) -> dict[bytes, tuple[int, bytes]]:
    names = draw(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"d/e", b"d/f", b"g h"]), unique=True, max_size=5))
    if b"d" in names:
        names = [name for name in names if not name.startswith(b"d/")]
    return {name: draw(_value) for name in names}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_files(), min_size=2, max_size=4), st.sampled_from([(), ("-M",), ("-C", "--find-copies-harder", "-U0")])
)
def test_any_series_as_git_applies_it(
    pair: Pair, trees: list[dict[bytes, tuple[int, bytes]]], options: tuple[str, ...]
) -> None:
    trees = [tree for tree, before in zip(trees, [None, *trees], strict=False) if tree != before]
    patches = series(pair, *trees, options=options)
    first = touched(patches, trees[0])
    made = from_text(patches, first)
    assert made is not None, "all of it is text"
    with contextlib.suppress(ForkError):  # git does not make a folder of a file that it renames
        assert made == by_git(patches, first)
    named = {p for each in patches for f in each.files for p in (f.old_path, f.new_path)}
    assert made[-1] == {path: have for path, have in stage(trees[-1]).items() if path in named}


@pytest.mark.parametrize("own", [REGULAR, EXECUTABLE])
@pytest.mark.parametrize(("old", "new"), [(REGULAR, REGULAR), (REGULAR, EXECUTABLE), (EXECUTABLE, REGULAR)])
def test_a_checkout_with_modes_of_its_own(pair: Pair, own: int, old: int, new: int) -> None:
    patches = series(
        pair, {b"a": (old, BODY)}, {b"a": (new, BODY + b"x\n")}, {b"b": (new, BODY + b"x\n")}, options=("-M",)
    )
    first = stage({b"a": (own, BODY)})
    made = from_text(patches, first)
    assert made is not None and made == by_git(patches, first)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({b"a": b"\0" * 9}, {b"a": b"\1" * 9}),
        ({b"a": BODY}, {b"a": BODY, b"b": b"\0new"}),
        ({b"a": b"\0gone"}, {}),
    ],
)
def test_binary_data_is_left_to_git(pair: Pair, old: Made, new: Made) -> None:
    patches = series(pair, old, new)
    first = touched(patches, old)
    assert from_text(patches, first) is None
    assert stages(patches, dict(first))[-1] == {
        p: v for p, v in stage(new).items() if p != b"a" or new[b"a"] != old[b"a"]
    }


def test_a_link_where_the_patch_has_a_file_is_left_to_git_which_refuses(pair: Pair) -> None:
    patches = series(pair, {b"a": b"target"}, {b"a": b"other"})
    first = stage({b"a": (SYMLINK, b"target")})
    assert from_text(patches, first) is None
    with pytest.raises(ForkError, match=r"0\.patch does not apply"):
        stages(patches, dict(first))


def test_a_file_where_a_patch_needs_a_folder(pair: Pair) -> None:
    patches = series(pair, {}, {b"d/e": BODY}) + series(pair, {}, {b"d": BODY})
    assert from_text(patches, {}) is None
    with pytest.raises(ForkError):
        stages(patches, {})


def test_another_result_than_the_patch_names(pair: Pair) -> None:
    raw = patch(pair, {b"a": BODY}, {b"a": BODY + b"x\n"})
    wrong = parse_patch("w.patch", raw.replace(blob_id(BODY + b"x\n").encode(), b"1" * 40))
    assert from_text([wrong], stage({b"a": BODY})) is None
    with pytest.raises(ForkError, match="gives another a than it says"):
        stages([wrong], dict(stage({b"a": BODY})))


def test_our_own_series_needs_no_process(
    content: contents.Content, store: Store, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = forks.load(content, base.version)
    entries = store.entries(base.tree)
    before: Files = dict(store.read({p: e for p, e in entries.items() if p in fork.patched}))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = stages(fork.patches, before)
    assert len(found) == len(fork.patches) + 1
    assert found[0] != found[-1]
