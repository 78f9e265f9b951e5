"""The overlay's modules without vLLM and without torch, and made-up upstream packages to hook."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

OVERLAY = Path(__file__).resolve().parents[2] / "overlay" / "0.25.1"
GPU = OVERLAY / "vllm" / "v1" / "worker" / "gpu"
_PACKAGE = "kunlun_under_test"
_MODULES = ("backend", "binder", "dispatch", "hook", "host_facts", "sites", "stamp", "switches", "upstream_source")


@pytest.fixture(scope="session")
def kunlun() -> SimpleNamespace:
    """The overlay's `kunlun` package under another name, its modules as attributes; `gpu` is the folder above it."""
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(GPU / "kunlun")]
    sys.modules[_PACKAGE] = package
    modules = {name: importlib.import_module(f"{_PACKAGE}.{name}") for name in _MODULES}
    return SimpleNamespace(gpu=GPU, **modules)


@dataclass
class World:
    """Made-up modules below `root`, which is on `sys.path`; `site` and `binder` make what hooks them."""

    kunlun: SimpleNamespace
    root: Path

    def write(self, name: str, source: str) -> Path:
        """Write the module `name`, and empty packages above it."""
        path = self.root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(self.root).parents:
            if parent.name:
                (self.root / parent / "__init__.py").touch()
        path.write_text(dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        return path

    def site(self, module: str, qualname: str = "launch", signature: str = "(x)", **more: Any) -> Any:
        more = {"ids": (0,), "switch": None, "impl": "impl", **more}
        return self.kunlun.sites.Site(module=module, qualname=qualname, signature=signature, **more)

    def binder(self, *sites: Any, rebinders: Mapping[str, tuple[str, ...]] | None = None) -> Any:
        """A binder with its hook installed."""
        binder = self.kunlun.binder.Binder(sites, rebinders or {})
        self.kunlun.hook.install(binder)
        return binder


@pytest.fixture
def world(kunlun: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A `World` whose modules and hooks are gone after the test."""
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    modules, finders = set(sys.modules), list(sys.meta_path)
    yield World(kunlun, root)
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path_importer_cache.clear()


@pytest.fixture
def ours() -> Callable[..., Any]:
    """The implementation that tests activate."""

    def launch(x: Any) -> Any:
        return ("ours", x)

    return launch
