# SPDX-License-Identifier: Apache-2.0
"""How much memory a launcher's temporaries take, without having it: tensors on the `meta` device have sizes only."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Temporaries(TorchDispatchMode):
    """`peak`: the most bytes of new storages that lived at once inside the mode, results included.

    What an operator takes inside itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._owners: dict[int, int] = {}
        self._old: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            key = x.untyped_storage()._cdata
            if key not in self._owners:
                self._old.add(key)
        out = func(*args, **(kwargs or {}))
        for x in _tensors(out):
            self._follow(x)
        return out

    def _follow(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._old:
            return
        if key not in self._owners:
            self._owners[key] = 0
            self.now += size
            self.peak = max(self.peak, self.now)
        self._owners[key] += 1
        weakref.finalize(x, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._owners[key] -= 1
        if not self._owners[key]:
            del self._owners[key]
            self.now -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in _pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def peak(function: Any, *args: Any, **kwargs: Any) -> int:
    """Bytes of the temporaries and results of a call."""
    with Temporaries() as seen:
        function(*args, **kwargs)
    return seen.peak
