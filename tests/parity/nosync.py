# SPDX-License-Identifier: Apache-2.0
"""Forbid everything that makes the host wait for a device, and every shape that depends on device values.

On a CPU nothing really waits, so the operations are recognised by name: Python's ways out of a tensor at the
level of `torch` functions, the rest at the level of dispatched operators, where what a composite operator
does inside is seen too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Ways from a tensor to a Python or NumPy value.
HOST_READS = frozenset(
    {
        "item",
        "tolist",
        "numpy",
        "cpu",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__contains__",
        "__format__",
        "__repr__",
        "is_nonzero",
        "equal",
        "allclose",
    }
)
# Operators whose result, or its shape, the host has to wait for; and those without a kernel on Kunlun.
BANNED_OPERATORS = frozenset(
    {
        "nonzero",
        "masked_select",
        "_local_scalar_dense",
        "equal",
        "bincount",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "_unique",
        "_unique2",
        "searchsorted",
        "bucketize",
        "histc",
        "is_nonzero",
    }
)
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})


class HostSync(AssertionError):
    """A launcher did something that stalls the host or makes a shape depend on device values."""


def _holds_tensor(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and any(isinstance(x, torch.Tensor) or _holds_tensor(x) for x in data)


class _Functions(TorchFunctionMode):
    def __init__(self, allow: Collection[str]) -> None:
        super().__init__()
        self.allow = allow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in HOST_READS and name not in self.allow:
            raise HostSync(f"{name}() reads a tensor on the host")
        if name in ("tensor", "as_tensor", "asarray") and _holds_tensor(
            args[0] if args else (kwargs or {}).get("data")
        ):
            raise HostSync(f"{name}() of a list of tensors reads each on the host")
        if name == "to" and "to" not in self.allow:
            # A device object is the caller's (a CPU here, by chance); the literal is a decision for the host.
            targets = [*args[1:], *(kwargs or {}).values()]
            if any(isinstance(target, str) and target.startswith("cpu") for target in targets):
                raise HostSync("to('cpu') copies a tensor to the host")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, allow: Collection[str]) -> None:
        super().__init__()
        self.allow = allow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        if name not in self.allow:
            if name in BANNED_OPERATORS:
                raise HostSync(f"aten::{name} waits for the device or has no kernel there")
            if name in INDEXING and any(
                isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
            ):
                raise HostSync(f"aten::{name} with a boolean mask has a shape that depends on the device")
            if name == "repeat_interleave" and kwargs.get("output_size") is None:
                raise HostSync("repeat_interleave without output_size waits for the device")
        return func(*args, **kwargs)


@contextmanager
def no_sync(allow: Collection[str] = ()) -> Iterator[None]:
    """Run the body under both bans, less the names in `allow`. Raises HostSync at the offending call."""
    with _Functions(allow), _Operators(allow):
        yield
