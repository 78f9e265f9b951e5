# SPDX-License-Identifier: Apache-2.0
"""Cases on a device: their tensors are moved there, and what a call left is brought home to be compared.

Cases are made on the CPU. `place` moves every tensor that a launcher would find on the device, with its strides, its
place in its storage and whom it shares that with; tables of raw addresses follow. What stays on the host: NumPy arrays,
upstream's views of host memory (on a device they are the device's already) and what is named after the host.

`KUNLUN_PARITY_DEVICE` names the device (cpu: nothing is moved).
"""

from __future__ import annotations

import os
import random
import weakref
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from compare import State

DEVICE = torch.device(os.environ.get("KUNLUN_PARITY_DEVICE", "cpu"))
# Attributes with host memory that a launcher copies from.
_HOST_NAMES = ("cpu", "pinned", "np")
# Classes that own both sides.
_VIEWS = frozenset({"UvaBuffer", "UvaBufferPool", "UvaBackedTensor", "DeviceBuffer"})
_LEAVES = (type(None), bool, int, float, complex, str, bytes, np.generic, np.ndarray, torch.dtype)
_OPAQUE = (type, ModuleType, FunctionType, MethodType, random.Random, torch.Generator)


@dataclass
class _Move:
    device: torch.device
    # Storages by address, and what became of them.
    storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    addresses: list[torch.Tensor] = field(default_factory=list)

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu" or x.is_pinned():
            return x
        moved = _rebuilt(x, self.storage(x.untyped_storage()))
        if x.dtype in (torch.int64, torch.uint64):
            self.addresses.append(moved)
        return moved

    def storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        key = storage.data_ptr()
        if key == 0 or key not in self.storages:
            moved = _copied(storage, self.device)
            self.storages[key or -id(moved)] = (storage, moved)
            return moved
        return self.storages[key][1]

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.seen:
                self.alive.append(value)
                self.seen[id(value)] = self.tensor(value)
            return self.seen[id(value)]
        if isinstance(value, weakref.ref):
            # Of a tensor that something else holds.
            target = self.value(value())
            return value if target is None else weakref.ref(target)
        if isinstance(value, torch.device):
            return self.device if value.type == "cpu" else value
        if isinstance(value, (*_LEAVES, *_OPAQUE)) or type(value).__name__ in _VIEWS:
            return value
        if id(value) not in self.seen:
            self.alive.append(value)
            self.seen[id(value)] = value
            self.seen[id(value)] = self.inside(value)
        return self.seen[id(value)]

    def inside(self, value: Any) -> Any:
        if isinstance(value, dict):
            for key, item in value.items():
                value[key] = self.value(item)
        elif isinstance(value, list):
            value[:] = [self.value(item) for item in value]
        elif isinstance(value, tuple):
            items = [self.value(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        else:
            for name, item in list(getattr(value, "__dict__", {}).items()):
                if not _is_host(name):
                    moved = self.value(item)
                    if moved is not item:
                        object.__setattr__(value, name, moved)
        return value

    def translate(self) -> None:
        """Let tables of raw addresses point to where things are now: no other number is as large as an address."""
        ranges = [(old.data_ptr(), old.nbytes(), new.data_ptr()) for old, new in self.storages.values()]
        lowest = min((start for start, size, _ in ranges if size), default=0)
        for table in self.addresses:
            numbers = table.view(torch.int64)
            if not numbers.numel() or int(numbers.max()) < lowest:
                continue
            moved = [_translated(number, ranges) for number in numbers.flatten().tolist()]
            numbers.copy_(torch.tensor(moved, dtype=torch.int64).view(table.shape))


def _is_host(name: str) -> bool:
    return any(part in _HOST_NAMES for part in name.split("_"))


def stays(path: str, x: torch.Tensor) -> bool:
    """Whether a tensor lies on the host: where it lies elsewhere than on the device, or (on a CPU) by its name."""
    return x.device.type != DEVICE.type or _is_host(path.rpartition(".")[2].partition("[")[0])


def _translated(address: int, ranges: list[tuple[int, int, int]]) -> int:
    for old, size, new in ranges:
        if old <= address < old + size:
            return address - old + new
    return address


def _copied(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return source.to(device, copy=True).untyped_storage()


def _rebuilt(x: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype, device=storage.device).set_(storage, x.storage_offset(), x.shape, x.stride())


def place(
    args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device = DEVICE, spoil: int | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call on `device`. Objects are changed in place; tensors and tuples are new.

    spoil: a byte that the memory left behind is filled with, for tests of this.
    """
    move = _Move(device)
    placed = tuple(move.value(value) for value in args), {k: move.value(v) for k, v in kwargs.items()}
    move.translate()
    if spoil is not None:
        for left, _ in move.storages.values():
            torch.empty(0, dtype=torch.uint8).set_(left).fill_(spoil)
    return placed


def home(state: State) -> State:
    """The same leaves with all tensors on the CPU; what shared memory does so still."""
    moved: dict[int, torch.UntypedStorage] = {}
    found = State()
    for path, value in state.items():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            storage = value.untyped_storage()
            key = storage.data_ptr()
            if key == 0 or key not in moved:
                moved[key] = _copied(storage, torch.device("cpu"))
            found[path] = _rebuilt(value, moved[key])
        else:
            found[path] = value
    return found
