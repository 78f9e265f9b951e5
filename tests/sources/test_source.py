"""`--source` as `apply` uses it."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from support import VERSION, Upstream, digest
from unprivileged import unprivileged

from kunlunfork import make, record
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store

Make = Callable[..., object]


@pytest.fixture
def new(small_content: Content, tmp_path: Path) -> Make:
    """Make a tree from a source, in a cache of its own."""
    cache = Cache(tmp_path / "cache")
    settings = Settings(cache, None, True, Silent())

    def call(source: str, tree: Path, dry_run: bool = False) -> object:
        return make.new_or_update(small_content, VERSION, tree, source, Store(cache.store), settings, dry_run=dry_run)

    return call


def wheel_of(upstream: Upstream, file: Path, change: dict[str, bytes | None] | None = None) -> Path:
    """A whole wheel of the small upstream."""
    info = f"vllm-{VERSION}.dist-info"
    files: dict[str, bytes | None] = {
        os.fsdecode(p): data for p, (_, data) in upstream.files.items() if p.startswith(b"vllm/")
    }
    files |= {f"{info}/METADATA": f"Name: vllm\nVersion: {VERSION}\n".encode(), **(change or {})}
    kept = {name: data for name, data in files.items() if data is not None}
    lines = [b"%s,%s,%s\n" % (name.encode(), *record.digest(data)) for name, data in kept.items()]
    with zipfile.ZipFile(file, "w") as z:
        for name, data in {**kept, f"{info}/RECORD": b"".join(lines) + f"{info}/RECORD,,\n".encode()}.items():
            z.writestr(name, data)
    return file


def test_a_wheel(new: Make, upstream: Upstream, tmp_path: Path) -> None:
    new(str(wheel_of(upstream, tmp_path / "a.whl")), tmp_path / "out" / "tree")
    assert (tmp_path / "out/tree/vllm/v1/worker/gpu/kunlun/__init__.py").is_file()


@pytest.mark.parametrize("kind", ["folder", "wheel"])
def test_a_dry_run_leaves_no_folders(kind: str, new: Make, tree: Path, upstream: Upstream, tmp_path: Path) -> None:
    source = str(tree) if kind == "folder" else str(wheel_of(upstream, tmp_path / "a.whl"))
    before = digest(tmp_path)
    new(source, tmp_path / "parents" / "of" / "tree", dry_run=True)
    assert digest(tmp_path) == before


@pytest.mark.parametrize("place", [".", "inner", "vllm/v1/inner", "link/inner"])
def test_a_tree_inside_its_source_is_refused(place: str, new: Make, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree / "link").symlink_to("vllm")
    before = digest(tmp_path)
    with pytest.raises(ForkError, match="inside its source"):
        new(str(tree), tree / place / "vllm-tree")
    assert digest(tmp_path) == before


@pytest.mark.parametrize("kind", ["folder", "wheel"])
@pytest.mark.parametrize(
    "change",
    [
        {"vllm/__init__.py": None},
        {"vllm/_version.py": b"__version__ = '0.1.0'\n"},
        {"vllm/v1/worker/gpu/__init__.py": b"mine\n"},
        {"vllm/v1/worker/gpu/kunlun/__init__.py": b"taken\n"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_errors_name_the_source(
    kind: str, change: dict[str, bytes | None], new: Make, tree: Path, upstream: Upstream, tmp_path: Path
) -> None:
    """Not the folder that the files were staged in, which is gone by then."""
    if kind == "wheel":
        source = wheel_of(upstream, tmp_path / "a.whl", change)
    else:
        source = tree
        for name, data in change.items():
            (tree / name).unlink(missing_ok=True)
            if data is not None:
                (tree / name).parent.mkdir(exist_ok=True)
                (tree / name).write_bytes(data)
    with pytest.raises(ForkError) as error:
        new(str(source), tmp_path / "out" / "tree")
    said = repr(error.value.as_json())
    assert str(source) in said
    assert "kunlunfork-" not in said.replace("kunlunfork-tree", "")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_the_place_of_an_overlay_folder(
    small_content: Content, new: Make, upstream: Upstream, tmp_path: Path
) -> None:
    """It stays inside the tree, and yet the fork's files would land among upstream's."""
    root = upstream.write(tmp_path / "up" / f"vllm-{VERSION}")
    (root / "vllm/v1/worker/gpu/kunlun").symlink_to("..")
    file = tmp_path / f"vllm-{VERSION}.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(root, root.name)
    pin = small_content.patches / VERSION / "pin.toml"
    pin.write_text(re.sub(r"[0-9a-f]{64}", sha256(file.read_bytes()).hexdigest(), pin.read_text()))
    for source in (root, file):
        with pytest.raises(ForkError, match="vllm/v1/worker/gpu/kunlun") as error:
            new(str(source), tmp_path / "out" / "tree")
        assert ".tree.kunlunfork" not in repr(error.value.as_json())
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("what", ["sdist", "wheel", "folder", "folder of it", "inner folder"])
def test_what_this_user_may_not_read(what: str, new: Make, upstream: Upstream, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    source, closed = {
        "sdist": (place / "a.tar.gz", place / "a.tar.gz"),
        "wheel": (place / "a.whl", place / "a.whl"),
        "folder": (place / "tree", place / "tree"),
        "folder of it": (place / "a.whl", place),
        "inner folder": (place / "tree", place / "tree" / "vllm" / "v1"),
    }[what]
    upstream.write(place / "tree")
    for name in ("a.tar.gz", "a.whl"):
        (place / name).write_bytes(b"x")
    closed.chmod(0o000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    with unprivileged(tmp_path), pytest.raises(ForkError, match="cannot be read"):
        new(str(source), tmp_path / "out" / "tree")
    closed.chmod(0o755)


@pytest.mark.parametrize("source", ["", "git:", "no-such-thing", "/dev/null"])
def test_what_is_no_source(source: str, new: Make, tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="is no source of vLLM"):
        new(source, tmp_path / "tree")
