from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from support import REPO, VERSION, apply, digest
from test_cli import as_json, run
from unprivileged import unprivileged

from kunlunfork import content as contents
from kunlunfork import errors, overlay, pins, switches
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.fork import load
from kunlunfork.lintall import lint_pins
from kunlunfork.store import Store

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
        (f"size = {FACTS['size']}", "size = -1", "sdist_size"),
        (f"size = {FACTS['size']}", "size = 0", "sdist_size"),
        (f"size = {FACTS['size']}", "size = true", "sdist_size: bool, expected int"),
        ('name = "', 'name = "../../', "sdist_name"),
        ('name = "', 'name = "/tmp/', "sdist_name"),
        ('name = "vllm-0.25.1.tar.gz"', 'name = "..tar.gz"', "sdist_name"),
        ('name = "vllm-0.25.1.tar.gz"', 'name = "vllm\\n.tar.gz"', "sdist_name"),
        ('name = "vllm-0.25.1.tar.gz"', 'name = ""', "sdist_name"),
        ('tag = "v', 'tag = "--upload-pack=v', "tag"),
        ('tag = "v', 'tag = "v 1', "tag"),
        ('torch = "2', 'torch = "two', "torch"),
        ('uploaded = "2026', 'uploaded = "26', "uploaded"),
        (">=3.10", "at least 3.10", "requires_python"),
    ],
)
def test_a_wrong_pin_file_is_refused(old: str, new: str, says: str, small_content: Content) -> None:
    file = small_content.patches / VERSION / "pin.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ForkError) as error:
        small_content.pin(VERSION)
    assert says in json.dumps(error.value.as_json())
    code, body = as_json("lint", "--repo", small_content.root)
    assert code == errors.USER
    finding = next(f for f in body["result"]["findings"] if f["code"] == "pin")
    assert says in finding["message"] and finding["file"] == str(file)


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


SWITCHES = f"overlay/{VERSION}/vllm/v1/worker/gpu/kunlun/switches.py"


@pytest.fixture
def clone(small_content: Content) -> Path:
    """A folder that looks like a clone, and whose switches leave a mark when they are run."""
    root = small_content.root
    for name in ("scripts/kunlunfork/content.py", "ci/matrix.toml", "tests/parity/conftest.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / SWITCHES).write_text(f"import pathlib\npathlib.Path({str(root / 'MARK')!r}).touch()\n")
    (root / "work").mkdir()
    return root


def _give(path: Path, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make something another user's."""
    if os.geteuid() == 0:
        os.chown(path, user, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user)  # then everything here is another user's


@pytest.mark.parametrize(
    "name", ["", "patches", "overlay", "ci", "tests/parity", "scripts/kunlunfork/content.py", SWITCHES]
)
def test_a_clone_of_another_user_is_used_only_if_it_is_named(
    name: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone / "work")
    assert contents.find().root == clone
    _give(clone / name, 12345, monkeypatch)
    with pytest.raises(ForkError, match="belongs to someone else") as error:
        contents.find()
    assert error.value.fix is not None
    assert shlex.split(error.value.fix)[-2:] == ["--repo", str(clone)]
    assert contents.find(clone).root == clone
    monkeypatch.setenv(contents.ENV, str(clone))
    assert contents.find().root == clone


def test_links_do_not_hide_another_user(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    (clone / "patches").rename(theirs)
    (clone / "patches").symlink_to(theirs)
    _give(theirs, 12345, monkeypatch)
    monkeypatch.chdir(clone)
    with pytest.raises(ForkError, match="belongs to someone else"):
        contents.find()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_the_user_behind_sudo_is_trusted(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    _give(clone, 12345, monkeypatch)
    for value in ("1", "", "x", "\u0661"):
        monkeypatch.setenv("SUDO_UID", value)
        with pytest.raises(ForkError, match="belongs to someone else"):
            contents.find()
    monkeypatch.setenv("SUDO_UID", "12345")
    assert contents.find().root == clone


@pytest.mark.parametrize("verb", ["switches", "status", "pins", "lint", "cache prune", "apply --in-place TREE"])
def test_no_verb_runs_or_uses_another_users_clone(
    verb: str, clone: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    if os.geteuid() != 0:
        pytest.skip("gives files away")
    (clone / "work" / "t").parent.mkdir(exist_ok=True)
    tree.rename(clone / "work" / "t")
    os.chown(clone / "patches", 12345, -1)
    args = ["status", clone / "work" / "t"] if verb == "status" else verb.replace("TREE", ".").split()
    before = digest(clone)
    code, body = as_json(*args, cwd=clone / "work" / "t")
    assert code == errors.USER
    assert "belongs to someone else" in body["error"]["message"]
    assert digest(clone) == before
    assert not (clone / "MARK").exists()


@pytest.mark.parametrize("below", ["", "vllm/v1"])
def test_a_tree_of_vllm_never_brings_the_patches(
    below: str, clone: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("patches", "overlay", "scripts"):
        (clone / name).rename(tree / name)
    monkeypatch.chdir(tree / below)
    assert contents.find().root == REPO
    assert run("switches").returncode == 0
    assert not (clone / "MARK").exists()


@pytest.mark.parametrize("version", ["0.25.1.0", "0.25.1.0+cpu", "v0.25.1", "0.25.1.0.0"])
def test_zeros_at_the_end_mean_nothing(version: str, content: Content) -> None:
    assert content.pin(version).version == VERSION
    code, body = as_json("lint", "--vllm", version, "--repo", REPO)
    assert code in (0, 1) and body["result"] is not None


@pytest.mark.parametrize("version", ["0.24.0", "0.25.1.1", "0.25.1rc1", "1!0.25.1", "0.99.0", "0"])
def test_what_has_no_pin_is_told_with_a_command_that_works(version: str, content: Content) -> None:
    with pytest.raises(ForkError, match="no pin") as error:
        content.pin(version)
    near = content.newest() if version in ("1!0.25.1", "0.99.0") else VERSION
    assert error.value.fix == f"take a release that has one: kunlunfork apply --vllm {near}"


@pytest.mark.parametrize("top", ["patches", "overlay"])
@pytest.mark.parametrize("name", [".ruff_cache", "__pycache__", ".DS_Store", ".idea"])
def test_what_tools_leave_between_the_versions_is_passed_over(
    top: str, name: str, small_content: Content, tree: Path, store: Store
) -> None:
    (small_content.root / top / name).mkdir()
    (small_content.root / top / name / "pin.toml").write_text("")
    assert small_content.versions() == (VERSION,)
    assert apply(small_content, tree, store).action == "applied"


@pytest.mark.parametrize("top", ["patches", "overlay"])
@pytest.mark.parametrize("name", ["drafts", "0.25.1.0", "0.25.1-kunlun!", "v0.25.1"])
def test_a_folder_that_is_no_version_or_one_twice_is_told(
    top: str, name: str, small_content: Content, tree: Path, store: Store
) -> None:
    (small_content.root / top / name).mkdir()
    with pytest.raises(ForkError) as error:
        apply(small_content, tree, store)
    assert name in str(error.value.as_json())
    for verb in ("pins", "lint", "switches"):
        assert as_json(verb, "--repo", small_content.root)[0] == errors.USER


@pytest.mark.parametrize("verb", ["switches", "lint", "matrix run", "matrix selftest", "bench apply"])
def test_without_any_pin(verb: str, small_content: Content, tmp_path: Path) -> None:
    shutil.rmtree(small_content.patches / VERSION)
    code, body = as_json(*verb.split(), "--repo", small_content.root, cwd=tmp_path)
    assert code == errors.USER
    assert "holds no pin" in body["error"]["message"]


def test_lint_sees_a_folder_without_its_pin(small_content: Content) -> None:
    shutil.copytree(small_content.patches / VERSION, small_content.patches / "0.26.0")
    (small_content.patches / "0.26.0" / "pin.toml").unlink()
    code, body = as_json("lint", "--repo", small_content.root)
    assert code == errors.USER
    found = {(f["code"], f["file"]) for f in body["result"]["findings"] if f["code"] == "pin"}
    assert found == {("pin", str(small_content.patches / "0.26.0" / "pin.toml"))}


def test_what_was_acknowledged_before_the_rebase_is_no_fault(small_content: Content) -> None:
    """`drift --to 0.26.0 --ack` writes there, and the pin comes later."""
    folder = small_content.patches / "0.26.0"
    folder.mkdir()
    (folder / "contracts.json").write_text('{"schema": 1, "acks": {}, "contracts": {}}')
    assert as_json("lint", "--repo", small_content.root)[0] == errors.OK


@pytest.mark.parametrize("name", ["areas.toml", f"{VERSION}/contracts.json", "0.26.0/contracts.json"])
def test_lint_reads_what_drift_and_diff_read(name: str, small_content: Content) -> None:
    file = small_content.patches / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("[x")
    code, body = as_json("lint", "--repo", small_content.root)
    assert code == errors.USER
    assert str(file) in {f["file"] for f in body["result"]["findings"]}


@pytest.mark.parametrize(
    "name", ["", "patches", "overlay", f"patches/{VERSION}", f"overlay/{VERSION}", f"patches/{VERSION}/pin.toml",
             f"patches/{VERSION}/series", f"patches/{VERSION}/gpu-worker-runner.patch",
             f"overlay/{VERSION}/vllm/v1/worker/gpu/model_runner_v2.py", SWITCHES],
)  # fmt: skip
@pytest.mark.parametrize("mode", [0, 0o444])
def test_content_that_may_not_be_read(name: str, mode: int, clone: Path) -> None:
    if mode and not (clone / name).is_dir():
        pytest.skip("a file that may be read")
    (clone / SWITCHES).write_bytes((REPO / SWITCHES).read_bytes())
    (clone / name).chmod(mode)
    try:
        with unprivileged(clone.parent), pytest.raises(ForkError) as error:
            found = contents.find(clone)
            switches.read(found, None, {})
            load(found, VERSION)
        assert error.value.exit_code == errors.USER
        with unprivileged(clone.parent), contextlib.suppress(ForkError):
            lint_pins(contents.find(clone), (VERSION,), Cache(clone.parent / "none"))
    finally:
        (clone / name).chmod(0o755)


def test_lint_without_a_cache_that_may_be_read(clone: Path) -> None:
    folder = clone.parent / "cache"
    (folder / "store.git").mkdir(parents=True)
    folder.chmod(0)
    try:
        with unprivileged(clone.parent):
            found = lint_pins(contents.find(clone), (VERSION,), Cache(folder))
    finally:
        folder.chmod(0o755)
    assert {f.code for f in found} == {"skipped"}


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
