"""The fork's contracts at 0.25.1, on the real release."""

from __future__ import annotations

import pytest
from contractkit import Bench

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.contracts import extract
from kunlunfork.fork import load
from kunlunfork.store import Base, Store
from kunlunfork.symbols.kept import Kept
from kunlunfork.symbols.release import Release


@pytest.fixture(scope="session")
def bench(content: Content, store: Store, base: Base, user_cache: Cache) -> Bench:
    release = Release(store, base.tree, Kept(user_cache.root), base.version)
    return Bench(extract.extract(load(content, "0.25.1"), release), release)
