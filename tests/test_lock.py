from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunlunfork import journal as journals
from kunlunfork import lock as locks
from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.journal import Change, Journal
from kunlunfork.lock import Held, Lock
from kunlunfork.paths import EXECUTABLE, REGULAR, SYMLINK, Entry

BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
LOCK = Lock(
    version="0.25.1", commit="7" * 40, base_kind="sdist", base_version="0.25.1+cpu", series_hash="a", overlay_hash="b",
    patches=(("x.patch", "c"),),
    files={
        b"vllm/a.py": Held("patch", Entry(REGULAR, BLOB), Entry(EXECUTABLE, BLOB), 0o640),
        b"vllm/latin-\xe9": Held("overlay", None, Entry(SYMLINK, BLOB)),
        b"vllm/gone": Held("patch", Entry(REGULAR, BLOB), None, 0o644),
    },
    folders=(b"vllm/new",),
)  # fmt: skip


def test_round_trip(tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_bytes(locks.dump(LOCK))
    assert locks.read(tmp_path) == LOCK
    journal = Journal(
        "update",
        (Change(b"vllm/a.py", None, Entry(REGULAR, BLOB), None, 0o644),),
        (b"vllm/new",),
        LOCK,
        None,
    )
    (tmp_path / journals.NAME).write_bytes(journals.dump(journal))
    assert journals.read(tmp_path) == journal


def test_absent(tmp_path: Path) -> None:
    assert locks.read(tmp_path) is None
    assert locks.read(tmp_path / "nothing") is None
    assert journals.read(tmp_path) is None


def _lock() -> dict:
    return json.loads(locks.dump(LOCK))


def _entry(**changes: object) -> dict:
    raw = _lock()
    raw["files"]["vllm/a.py"]["post"].update(changes)
    return raw


HOSTILE = {
    "no object": [],
    "null": None,
    "newer schema": {**_lock(), "schema": 2},
    "no files": {k: v for k, v in _lock().items() if k != "files"},
    "files a list": {**_lock(), "files": []},
    "absolute": {**_lock(), "files": {"/etc/passwd": _lock()["files"]["vllm/a.py"]}},
    "climbs": {**_lock(), "files": {"vllm/../../x": _lock()["files"]["vllm/a.py"]}},
    "git": {**_lock(), "files": {".git/hooks/x": _lock()["files"]["vllm/a.py"]}},
    "own": {**_lock(), "files": {".kunlunfork/lock.json": _lock()["files"]["vllm/a.py"]}},
    "nul": {**_lock(), "files": {"vllm/a\0b": _lock()["files"]["vllm/a.py"]}},
    "folder climbs": {**_lock(), "folders": [".."]},
    "folder a number": {**_lock(), "folders": [1]},
    "blob short": _entry(blob="e69de29"),
    "blob path": _entry(blob="../../../../etc/passwd" + "0" * 18),
    "device": _entry(mode="020666"),
    "mode a number": _entry(mode=33188),
    "unknown role": {**_lock(), "files": {"a": {"role": "evil", "pre": None, "post": None}}},
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_lock_is_refused(raw: object, tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_text(json.dumps(raw))
    with pytest.raises(ForkError):
        locks.read(tmp_path)
    journal = {"schema": 1, "verb": "revert", "changes": [], "made": [], "lock": json.dumps(raw), "old_lock": None}
    (tmp_path / journals.NAME).write_text(json.dumps(journal))
    with pytest.raises(ForkError):
        journals.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ["../x", None, ["100644", BLOB, "644"]],
        ["a", None, ["100644", "../x", "644"]],
        ["a", None, ["20666", BLOB, "644"]],
        ["a", None],
        "a",
        [1, None, None],
    ],
)
def test_a_hostile_journal_is_refused(change: object, tmp_path: Path) -> None:
    journal = {"schema": 1, "verb": "apply", "changes": [change], "made": [], "lock": None, "old_lock": None}
    (tmp_path / journals.NAME).write_text(json.dumps(journal))
    with pytest.raises(ForkError):
        journals.read(tmp_path)


def test_a_journal_cannot_set_bits_beyond_permissions(tmp_path: Path) -> None:
    raw = ["a", None, ["100644", BLOB, "7777777"]]
    journal = {"schema": 1, "verb": "apply", "changes": [raw], "made": [], "lock": None, "old_lock": None}
    (tmp_path / journals.NAME).write_text(json.dumps(journal))
    found = journals.read(tmp_path)
    assert found is not None
    assert found.changes[0].after_perm == 0o7777


_KEYS = (
    "schema",
    "files",
    "pin",
    "base",
    "series",
    "overlay",
    "folders",
    "verb",
    "changes",
    "made",
    "lock",
    "old_lock",
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(_KEYS) | st.text(), inner),
    max_leaves=15,
)


@given(st.binary(max_size=300) | _VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused_politely(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / locks.NAME).write_bytes(data)
    (folder / journals.NAME).write_bytes(data)
    for read in (locks.read, journals.read):
        with pytest.raises(ForkError):
            read(folder)


def test_a_nest_too_deep_for_the_parser(tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_text("[" * 200_000)
    with pytest.raises(ForkError):
        locks.read(tmp_path)


def test_paths_survive_any_locale() -> None:
    for path in (b"a/\xe9", "é\u2028".encode(), b"x y"):
        assert paths.from_text(json.loads(json.dumps(paths.to_text(path)))) == path
