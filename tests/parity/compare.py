# SPDX-License-Identifier: Apache-2.0
"""Collect everything reachable from a call's arguments and result, and compare two such collections.

Paths name what is compared: `arg0`, `arg1` ... and `kw.NAME` for arguments, `ret` for the result; then
`.attribute`, `[i]` and `[key]`. `arg0` of a method is its `self`. A list or tuple of numbers is one leaf.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

# Path -> data pointer before and after the call.
Addresses = Mapping[str, tuple[int, int]]


class State(dict[str, Any]):
    """Path -> leaf: a tensor, a NumPy array, a number, a string, None, or a list of such without tensors."""


_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, torch.dtype, torch.device)
_OPAQUE = (type, ModuleType, FunctionType, MethodType, random.Random, torch.Generator)


def walk(path: str, value: Any, into: dict[str, Any], seen: set[int] | None = None) -> None:
    """Collect every leaf reachable from `value` under `path`."""
    seen = set() if seen is None else seen
    if isinstance(value, (torch.Tensor, np.ndarray, *_PLAIN)):
        into[path] = value
        return
    if isinstance(value, _OPAQUE) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        into[path + "#keys"] = [str(k) for k in value]
        for key, item in value.items():
            walk(f"{path}[{key}]", item, into, seen)
    elif isinstance(value, (list, tuple)):
        if all(isinstance(item, _PLAIN) for item in value):
            into[path] = list(value)
            return
        into[path + "#len"] = len(value)
        for i, item in enumerate(value):
            walk(f"{path}[{i}]", item, into, seen)
    else:
        names = list(getattr(value, "__dict__", {}))
        for klass in type(value).__mro__:
            slots = getattr(klass, "__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            if hasattr(value, name):
                walk(f"{path}.{name}", getattr(value, name), into, seen)


def walk_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    """Every leaf of the arguments of a call."""
    state = State()
    seen: set[int] = set()
    for i, value in enumerate(args):
        walk(f"arg{i}", value, state, seen)
    for name, value in kwargs.items():
        walk(f"kw.{name}", value, state, seen)
    return state


def _matches(path: str, patterns: Iterable[str]) -> bool:
    # A match covers what lies below it. A bracket in a path is not a character class.
    for pattern in patterns:
        literal = pattern.replace("[", "[[]")
        if any(fnmatch.fnmatchcase(path, literal + tail) for tail in ("", ".*", "[[]*", "#*")):
            return True
    return False


def _bits(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.bool:
        return x
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _differences(want: torch.Tensor, got: torch.Tensor, tolerance: tuple[float, float] | None) -> torch.Tensor:
    want, got = want.contiguous(), got.contiguous()
    if tolerance is not None:
        return ~torch.isclose(got.double(), want.double(), tolerance[0], tolerance[1], equal_nan=True)
    wrong = _bits(want) != _bits(got)
    if want.dtype.is_floating_point:
        wrong &= ~(want.isnan() & got.isnan())
    return wrong


class Comparison:
    """Finds the differences of two states; `problems` lists them, `max_error` is the largest tolerated one.

    skip: path patterns not compared. tolerance: path pattern -> (rtol, atol); bounds: path -> the largest distance of
    each element; everything else is compared bit by bit, NaN equal to NaN. masks: path -> True where a tensor is not
    compared. `first` is the path of the first problem, and the first element that differs, where it is one of a tensor.
    """

    def __init__(
        self,
        skip: Iterable[str] = (),
        tolerance: Mapping[str, tuple[float, float]] | None = None,
        masks: Mapping[str, torch.Tensor] | None = None,
        bounds: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.skip = tuple(skip)
        self.bounds = dict(bounds or {})
        self.tolerance = dict(tolerance or {})
        self.masks = dict(masks or {})
        self.problems: list[str] = []
        self.first: tuple[str, tuple[int, ...] | None] | None = None
        self.max_error = 0.0

    def _problem(self, path: str, text: str, index: tuple[int, ...] | None = None) -> None:
        self.problems.append(f"{path}: {text}")
        if self.first is None:
            self.first = path, index

    def states(self, want: State, got: State) -> None:
        """Every path in both, every leaf equal, and the memory around the tensors too."""
        for path in sorted(want.keys() | got.keys()):
            if _matches(path, self.skip):
                continue
            if path not in want or path not in got:
                self._problem(path, f"only {'upstream' if path in want else 'the fork'} has it")
                continue
            self.leaf(path, want[path], got[path])
        self.outside(want, got)

    def leaf(self, path: str, want: Any, got: Any) -> None:
        if type(want) is not type(got):
            self._problem(path, f"{type(got).__name__}, want {type(want).__name__}")
        elif isinstance(want, torch.Tensor):
            self.tensor(path, want, got)
        elif isinstance(want, np.ndarray):
            if want.dtype != got.dtype or want.shape != got.shape:
                self._problem(path, f"{got.dtype}{got.shape}, want {want.dtype}{want.shape}")
            elif want.dtype == object:
                if want.tolist() != got.tolist():
                    self._problem(path, f"{got.tolist()}, want {want.tolist()}")
            else:
                self.tensor(path, torch.from_numpy(want.copy()), torch.from_numpy(got.copy()))
        elif want != got and not (want != want and got != got):
            self._problem(path, f"{got!r}, want {want!r}")

    def tensor(self, path: str, want: torch.Tensor, got: torch.Tensor) -> None:
        if want.dtype != got.dtype or want.shape != got.shape:
            self._problem(path, f"{got.dtype}{tuple(got.shape)}, want {want.dtype}{tuple(want.shape)}")
            return
        tolerance = next((t for p, t in self.tolerance.items() if _matches(path, (p,))), None)
        wrong = _differences(want, got, tolerance)
        if path in self.bounds:
            # Not of a NaN or an infinity.
            wrong &= ~((got.double() - want.double()).abs() <= self.bounds[path])
        if path in self.masks:
            wrong &= ~self.masks[path]
        if (tolerance is not None or path in self.bounds) and want.numel():
            error = (got.double() - want.double()).abs()
            if path in self.masks:
                error = error.masked_fill(self.masks[path], 0.0)
            error = error[error.isfinite()]
            self.max_error = max(self.max_error, float(error.max()) if error.numel() else 0.0)
        if wrong.any():
            where = [tuple(i) for i in wrong.nonzero().tolist()]
            some = ", ".join(f"{i}: {got[i].item()!r} want {want[i].item()!r}" for i in where[:4])
            self._problem(path, f"{len(where)} of {want.numel()} differ; {some}", where[0])

    def outside(self, want: State, got: State) -> None:
        """Bytes of a storage that no compared tensor shows must be as upstream left them, too."""
        groups: dict[int, list[str]] = {}
        for path, value in want.items():
            if isinstance(value, torch.Tensor) and path in got and isinstance(got[path], torch.Tensor):
                groups.setdefault(value.untyped_storage().data_ptr(), []).append(path)
        for paths in groups.values():
            storage = want[paths[0]].untyped_storage()
            others = {got[p].untyped_storage().data_ptr() for p in paths}
            if any(_matches(p, self.skip) for p in paths) or len(others) > 1:
                continue
            other = got[paths[0]].untyped_storage()
            if storage.nbytes() != other.nbytes():
                self._problem(paths[0], f"storage of {other.nbytes()} bytes, want {storage.nbytes()}")
                continue
            seen = torch.zeros(storage.nbytes(), dtype=torch.bool)
            for path in paths:
                x = want[path]
                width = x.element_size()
                elements = torch.zeros(storage.nbytes() // width, dtype=torch.bool)
                torch.as_strided(elements, x.shape, x.stride(), x.storage_offset()).fill_(True)
                seen[: len(elements) * width] |= elements.repeat_interleave(width)
            if seen.all():
                continue
            a, b = (torch.tensor([], dtype=torch.uint8).set_(s) for s in (storage, other))
            wrong = (a != b) & ~seen
            if wrong.any():
                self._problem(f"storage of {paths[0]}", f"{int(wrong.sum())} bytes outside the tensor differ")

    def addresses(self, want: Addresses, got: Addresses) -> None:
        """A tensor stays where it was if upstream's does: its address may be in a graph."""
        for path, (before, after) in want.items():
            if _matches(path, self.skip) or path not in got:
                continue
            was, now = got[path]
            if (before == after) != (was == now):
                self._problem(path, f"{'moved to another address' if was != now else 'should move'}")

    def results(self, want: State, got: State) -> None:
        """Results are views of the same arguments in the same way, or memory of their own."""
        for path, value in want.items():
            other = got.get(path)
            if not path.startswith("ret") or _matches(path, self.skip):
                continue
            if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor) or not value.numel():
                continue
            mine, theirs = _aliased(value, want), _aliased(other, got)
            views = [(x.stride(), x.storage_offset()) for x in (value, other)]
            if mine != theirs:
                shared = f"shares memory with {theirs or 'nothing'}, want {mine or 'nothing'}"
                self._problem(path, shared)
            elif mine and views[0] != views[1]:
                self._problem(path, f"a different view of {mine[0]}")
            elif not mine and value.is_contiguous() and not other.is_contiguous():
                self._problem(path, "not contiguous")


def _aliased(x: torch.Tensor, state: State) -> list[str]:
    home = x.untyped_storage().data_ptr()
    return [
        path
        for path, value in sorted(state.items())
        if not path.startswith("ret")
        and isinstance(value, torch.Tensor)
        and value.numel()
        and value.untyped_storage().data_ptr() == home
    ]
