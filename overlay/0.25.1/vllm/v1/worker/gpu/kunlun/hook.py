# SPDX-License-Identifier: Apache-2.0
"""Tells a binder when a module has executed; nothing else about imports changes."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .binder import Binder


class Finder:
    """The first entry of `sys.meta_path`: asks the ones after it for the module."""

    def __init__(self, binder: Binder) -> None:
        self.binder = binder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self.binder.watched:
            return None
        finders = list(sys.meta_path)
        if self in finders:
            finders = finders[finders.index(self) + 1 :]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(fullname, path, target)
            if spec is not None:
                # A loader without exec_module cannot be followed; the binder finds
                # its module when V2 starts (`Binder.settle`).
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self.binder)
                return spec
        return None


class _Loader:
    """Stands before the real loader until the module executes, then leaves.

    What holds it earlier (a spec that was asked for and not imported) can use it
    like the real one, whose class and attributes it shows; a pickle or a copy of
    it is the real one.
    """

    def __init__(self, loader: Any, binder: Binder) -> None:
        self._loader = loader
        self._binder = binder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create_module = getattr(self._loader, "create_module", None)
        return None if create_module is None else create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and spec.loader is self:
            spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._binder.executed(module)

    @property
    def __class__(self):
        return type(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_binder"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _same, (self._loader,)

    def __repr__(self) -> str:
        return f"<kunlunfork hook before {self._loader!r}>"


def _same(loader: Any) -> Any:
    return loader


def install(binder: Binder) -> None:
    """Bind what is loaded, and whatever loads from now on. Installs once a binder."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder) and finder.binder is binder:
            return
    sys.meta_path.insert(0, Finder(binder))
    binder.settle()
