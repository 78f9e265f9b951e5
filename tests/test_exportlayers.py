"""Which layer of the overlay an exported file goes to, and which pins that reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunlunfork import exportfiles, exportoverlay, overlay, paths
from kunlunfork.content import Content
from kunlunfork.paths import REGULAR, Entry

OLD, MIDDLE, NEW = "0.25.1", "0.26.0", "0.27.1"


@pytest.fixture
def content(tmp_path: Path) -> Content:
    """Three pins: `a` and `b` are of the first, `b` is another's in the second, `c` goes there and comes back."""
    layers = {
        OLD: {"vllm/a.py": "a", "vllm/b.py": "b", "vllm/c.py": "c"},
        MIDDLE: {"vllm/b.py": "b2", "REMOVED": "vllm/c.py\n"},
        NEW: {"vllm/c.py": "c3"},
    }
    for version, files in layers.items():
        (tmp_path / "patches" / version).mkdir(parents=True)
        (tmp_path / "patches" / version / "pin.toml").write_text("")
        for name, text in files.items():
            file = tmp_path / "overlay" / version / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return Content(tmp_path, clone=True)


def _texts(content: Content, version: str) -> dict[str, str]:
    return {p.decode(): f.data.decode() for p, f in overlay.resolve(content.overlay, version).files.items()}


def _export(content: Content, version: str, own_layer: bool = False, **edits: str | None) -> tuple[set[str], list[str]]:
    """Export the overlay of a version after edits (`x="text"`, None deletes); the changed files, and the notes."""
    before = {v: _texts(content, v) for v in (OLD, MIDDLE, NEW)}
    wanted = {**before[version], **{f"vllm/{name}.py": text for name, text in edits.items()}}
    files = {
        name.encode(): (Entry(REGULAR, paths.blob_id(text.encode())), text.encode())
        for name, text in wanted.items() if text is not None
    }  # fmt: skip
    have = overlay.resolve(content.overlay, version)
    writes, notes = exportoverlay.plan(content, version, have, files, own_layer=own_layer)
    exportfiles.write(content.root, writes)
    assert _texts(content, version) == {name: text for name, text in wanted.items() if text is not None}
    assert (
        exportoverlay.plan(content, version, overlay.resolve(content.overlay, version), files, own_layer=own_layer)[0]
        == []
    )
    said = {pin for note in notes for pin in note.partition(" reaches ")[2].removesuffix(" too").split(", ") if pin}
    changed = {v for v in before if v != version and _texts(content, v) != before[v]}
    assert said == changed, "what is said is what happens"
    return {str(write.path) for write in writes}, notes


def test_an_edit_goes_to_the_layer_that_ships_the_file(content: Content) -> None:
    assert _export(content, NEW, a="edited")[0] == {f"overlay/{OLD}/vllm/a.py"}
    assert _texts(content, OLD)["vllm/a.py"] == "edited"


def test_the_own_layer_is_for_this_pin_and_later_ones(content: Content) -> None:
    written, notes = _export(content, MIDDLE, own_layer=True, a="edited")
    assert written == {f"overlay/{MIDDLE}/vllm/a.py"}
    assert NEW in notes[0] and OLD not in notes[0].partition("reaches")[2]
    assert _export(content, NEW, own_layer=True, b="edited") == ({f"overlay/{NEW}/vllm/b.py"}, [])


def test_an_edit_of_the_first_pin_reaches_those_that_inherit(content: Content) -> None:
    assert _export(content, OLD, b="edited") == ({f"overlay/{OLD}/vllm/b.py"}, []), "the others have their own"
    assert _export(content, OLD, a="edited")[0] == {f"overlay/{OLD}/vllm/a.py"}


def test_a_new_file(content: Content) -> None:
    assert _export(content, MIDDLE, d="new")[0] == {f"overlay/{MIDDLE}/vllm/d.py"}
    assert _export(content, NEW, e="new") == ({f"overlay/{NEW}/vllm/e.py"}, [])


def test_a_deletion_of_an_inherited_file_is_listed(content: Content) -> None:
    assert _export(content, NEW, a=None)[0] == {f"overlay/{NEW}/REMOVED"}
    assert _export(content, MIDDLE, b=None)[0] == {f"overlay/{MIDDLE}/vllm/b.py", f"overlay/{MIDDLE}/REMOVED"}
    assert (content.overlay / MIDDLE / "REMOVED").read_text() == "vllm/c.py\nvllm/b.py\n"


def test_a_deletion_of_what_an_older_pin_removed_already(content: Content) -> None:
    assert _export(content, NEW, c=None) == ({f"overlay/{NEW}/vllm/c.py"}, [])
