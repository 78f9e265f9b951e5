from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import REPO, VERSION

from kunlunfork import content as contents
from kunlunfork import overlay, pins
from kunlunfork.content import Content
from kunlunfork.errors import ForkError

FACTS = {
    "version": "0.25.1",
    "commit": "752a3a504485790a2e8491cacbb35c137339ad34",
    "sha256": "ddbdec3f1c0f21afa70b7eb6ddf3faa29d26b1302ee4b5d5e00ec3af41b0c2e4",
    "size": 37731826,
}


def test_the_first_pin(content: Content) -> None:
    pin = content.pin("0.25.1+cpu")
    found = {"version": pin.version, "commit": pin.commit, "sha256": pin.sdist_sha256, "size": pin.sdist_size}
    assert found == FACTS
    assert pin.tag == "v0.25.1"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('version = "0.25.1"', 'version = "0.25.2"', "the folder is 0.25.1"),
        (FACTS["commit"], "main", "commit"),
        (str(FACTS["sha256"]), "abc", "sha256"),
        ("torch = ", "torhc = ", "torhc: unknown field"),
        (f"size = {FACTS['size']}", 'size = "big"', "sdist_size: str, expected int"),
        ("[sdist]", "", "sdist_name: missing"),
        ("tag", "tag = [", "cannot be read"),
    ],
)
def test_a_wrong_pin_file_is_refused(old: str, new: str, says: str, small_content: Content) -> None:
    file = small_content.patches / VERSION / "pin.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ForkError) as error:
        small_content.pin(VERSION)
    assert says in json.dumps(error.value.as_json())


def test_pins_are_in_the_order_of_versions(small_content: Content) -> None:
    for version in ("0.9.0", "0.25.1", "0.100.0"):
        folder = small_content.patches / version
        folder.mkdir(exist_ok=True)
        shutil.copy(REPO / "patches" / VERSION / "pin.toml", folder)
    assert small_content.versions() == ("0.9.0", "0.25.1", "0.100.0")
    with pytest.raises(ForkError) as error:
        small_content.pin("0.26.0")
    assert error.value.expected == "one of them; nearest: 0.25.1 and 0.100.0"


def test_which_content_is_meant(tmp_path: Path, small_content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO / "tests" / "sources")
    assert contents.find().root == REPO, "the clone one stands in"
    monkeypatch.setenv(contents.ENV, str(small_content.root))
    assert contents.find().root == small_content.root
    assert contents.find(REPO).root == REPO, "--repo goes first"
    monkeypatch.setenv(contents.ENV, str(tmp_path))
    with pytest.raises(ForkError, match="not a clone"):
        contents.find()


def _overlay(root: Path, layers: dict[str, dict[str, bytes]]) -> Path:
    for version, files in layers.items():
        for name, data in files.items():
            file = root / version / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return root


def test_layers(tmp_path: Path) -> None:
    root = _overlay(
        tmp_path,
        {
            "0.25.1": {"vllm/a.py": b"1", "vllm/b.py": b"1", "vllm/__pycache__/a.pyc": b"x"},
            "0.26.0": {"vllm/a.py": b"2", "REMOVED": b"# gone upstream\nvllm/b.py\n"},
            "0.100.0": {"vllm/b.py": b"3"},
        },
    )
    seen = {v: {p: f.data for p, f in overlay.resolve(root, v).files.items()} for v in ("0.25.1", "0.26.0", "0.100.0")}
    assert seen == {
        "0.25.1": {b"vllm/a.py": b"1", b"vllm/b.py": b"1"},
        "0.26.0": {b"vllm/a.py": b"2"},
        "0.100.0": {b"vllm/a.py": b"2", b"vllm/b.py": b"3"},
    }
    assert overlay.resolve(root, "0.26.0").files[b"vllm/a.py"].layer == "0.26.0"
    assert overlay.resolve(tmp_path / "nothing", "0.25.1").files == {}


def test_the_hash_sees_paths_and_bytes_not_x_bits(tmp_path: Path) -> None:
    def hashed(name: str, data: bytes) -> str:
        shutil.rmtree(tmp_path / "0.25.1", ignore_errors=True)
        return overlay.resolve(_overlay(tmp_path, {"0.25.1": {name: data}}), "0.25.1").hash

    assert len({hashed("vllm/a", b"1"), hashed("vllm/b", b"1"), hashed("vllm/a", b"2")}) == 3
    before = hashed("vllm/a", b"1")
    (tmp_path / "0.25.1/vllm/a").chmod(0o755)
    assert overlay.resolve(tmp_path, "0.25.1").hash == before


def test_a_wrong_removed_file_is_told(tmp_path: Path) -> None:
    for line in (b"vllm/never.py\n", b"../x\n"):
        root = _overlay(tmp_path, {"0.25.1": {"REMOVED": line}})
        with pytest.raises(ForkError):
            overlay.resolve(root, "0.25.1")


def test_versions() -> None:
    assert pins.public("0.25.1+cpu") == "0.25.1"
    with pytest.raises(ForkError):
        pins.public("main")
