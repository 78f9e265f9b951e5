"""What a tree that is already there makes of the source and the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import VERSION, apply, digest

from kunlunfork import errors, paths, status, target
from kunlunfork.cache import ENV
from kunlunfork.content import Content
from kunlunfork.paths import REGULAR
from kunlunfork.store import Store


def _cli(cache: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kunlunfork", *args],
        env={**os.environ, ENV: str(cache)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("option", [("--source", "pypi"), ("--source", ""), ("--index-url", "https://no.invalid")])
@pytest.mark.parametrize("in_place", [True, False])
def test_options_without_effect_are_told(
    option: tuple[str, str], in_place: bool, content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    before = digest(tree)
    where = ["--in-place", tree] if in_place else [tree]
    done = _cli(tmp_path / "cache", "apply", "--vllm", VERSION, *option, *where)
    # With --in-place it is no command that makes sense; without, it is the one that made the tree, run again.
    assert done.returncode == (errors.USAGE if in_place else errors.OK), done.stderr
    assert option[0] in done.stderr
    assert digest(tree) == before


@pytest.mark.parametrize("args", [("",), ("--source", "")])
def test_nothing_is_no_path(args: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kunlunfork", "apply", "--vllm", VERSION, "--offline", *args],
        cwd=tmp_path, env={**os.environ, ENV: str(tmp_path / "cache")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (errors.USER, errors.USAGE)
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == []


def test_verify_compares_with_the_release_of_the_pin_only(
    content: Content, tree: Path, store: Store, tmp_path: Path
) -> None:
    apply(content, tree, store)
    own = Store(tmp_path / "store.git")
    other = [(b"vllm/__init__.py", REGULAR, b"another build of the same version\n")]
    own.import_members("sdist", VERSION, "0" * 64, other)
    found = target.of_tree(tree)
    assert status.upstream_of(found, own, content) is None
    own.import_members("sdist", VERSION, content.pin(VERSION).sdist_sha256, other)
    upstream = status.upstream_of(found, own, content)
    assert upstream is not None
    assert upstream[b"vllm/__init__.py"].blob == paths.blob_id(other[0][2])


def _broken(cache: Path) -> None:
    (cache / "store.git").mkdir(parents=True)
    (cache / "store.git" / "kunlunfork").write_text("1\n")


def _foreign(cache: Path) -> None:
    (cache / "store.git").mkdir(parents=True)
    (cache / "store.git" / "thesis").write_text("mine")


def _file(cache: Path) -> None:
    cache.write_text("")


@pytest.mark.parametrize("spoil", [_broken, _foreign, _file])
def test_a_store_that_is_not_needed_may_be_broken(spoil: object, content: Content, tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert callable(spoil)
    spoil(cache)
    done = _cli(cache, "apply", "--in-place", tree)
    assert done.returncode == 0, done.stderr
    done = _cli(cache, "verify", "--json", tree)
    assert done.returncode == 0, done.stderr
    if spoil is not _file:  # that is a store which is not there, as on every new machine
        assert "not compared with the release" in " ".join(json.loads(done.stdout)["warnings"])
    assert _cli(cache, "revert", tree).returncode == 0
