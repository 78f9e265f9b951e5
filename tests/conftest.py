"""Real upstream files for every test: the sdist of 0.25.1, downloaded once into the user's cache folder."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import advice
import pytest
from support import REPO, VERSION, Upstream

from kunlunfork import cache
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.findings import Finding
from kunlunfork.fork import load
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings, release
from kunlunfork.status import Status
from kunlunfork.store import Base, Store


def pytest_configure() -> None:
    """A background job of a script ignores Ctrl-C, and so would all that the tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GIT_", "KUNLUN_", "KUNLUNFORK_")) and name not in ("GIT_SSL_CAINFO", "KUNLUNFORK_CACHE"):
            monkeypatch.delenv(name)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder whose name must be quoted, wherever a command names it."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


def _listen(kind: type) -> None:
    made = kind.__init__

    def init(self: object, *args: object, **kwargs: object) -> None:
        made(self, *args, **kwargs)  # type: ignore[misc]
        advice.GIVEN.append(getattr(self, "fix", None) or "")

    kind.__init__ = init  # type: ignore[misc]


for _kind in (ForkError, Finding, Status):
    _listen(_kind)


@pytest.fixture(autouse=True)
def _advice_can_be_followed() -> Iterator[None]:
    """Every command that something of ours advises during a test is one that can be pasted."""
    advice.GIVEN.clear()
    yield
    for text in dict.fromkeys(advice.GIVEN):
        advice.check(text)


@pytest.fixture(scope="session")
def content() -> Content:
    return Content(REPO, clone=True)


@pytest.fixture(scope="session")
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A cache of this session whose downloads are the user's."""
    downloads = cache.default().downloads
    downloads.mkdir(parents=True, exist_ok=True)
    root = tmp_path_factory.mktemp("cache")
    (root / "downloads").symlink_to(downloads)
    before = os.environ.get(cache.ENV)
    os.environ[cache.ENV] = str(root)
    yield Cache(root)
    if before is None:
        del os.environ[cache.ENV]
    else:
        os.environ[cache.ENV] = before


@pytest.fixture(scope="session")
def store(user_cache: Cache) -> Store:
    return Store(user_cache.store)


@pytest.fixture(scope="session")
def base(store: Store, content: Content, user_cache: Cache) -> Base:
    """The release in the store."""
    return release(content.pin(VERSION), store, Settings(user_cache, None, False, Silent()))


@pytest.fixture(scope="session")
def bases(store: Store, content: Content, user_cache: Cache) -> dict[str, Base]:
    """The releases of all pins, in the store."""
    settings = Settings(user_cache, None, False, Silent())
    return {version: release(content.pin(version), store, settings) for version in content.versions()}


@pytest.fixture(scope="session")
def sdist(base: Base, content: Content, user_cache: Cache) -> Path:
    return user_cache.downloads / content.pin(VERSION).sdist_name


# What makes a folder a tree of vLLM, some neighbours of what the fork touches, and an executable file.
_ALSO = (b"vllm/__init__.py", b"vllm/_version.py", b"vllm/version.py", b"vllm/v1/worker/gpu/README.md",
         b"vllm/v1/worker/gpu/states.py", b"PKG-INFO", b"setup.py")  # fmt: skip


@pytest.fixture(scope="session")
def upstream(store: Store, base: Base, content: Content) -> Upstream:
    """The real files that matter: a tree of them is made in milliseconds, the whole release in a second."""
    fork = load(content, VERSION)
    wanted = {*fork.patched, *_ALSO}
    entries = {p: e for p, e in store.entries(base.tree).items() if p in wanted}
    return Upstream(store.read(entries))


@pytest.fixture
def tree(tmp_path: Path, upstream: Upstream) -> Path:
    """A small upstream tree."""
    return upstream.write(tmp_path / "tree")


@pytest.fixture
def small_content(tmp_path: Path) -> Content:
    """The real series with a small overlay, in a folder that a test may change."""
    root = tmp_path / "content"
    shutil.copytree(REPO / "patches" / VERSION, root / "patches" / VERSION)
    folder = root / "overlay" / VERSION / "vllm" / "v1" / "worker" / "gpu"
    (folder / "kunlun").mkdir(parents=True)
    (folder / "kunlun" / "__init__.py").write_bytes(b"# overlay\n")
    (folder / "model_runner_v2.py").write_bytes(b"# runner\n")
    return Content(root, clone=True)
