# SPDX-License-Identifier: Apache-2.0
"""Run a site upstream's way and the fork's way on equal inputs, and compare all that either could touch.

A site module under `sites/` defines `SITES`, a tuple of `Site`. A `Case` builds its inputs anew at every call
of `make`, with everything writable filled by `poison`, so that a byte written too much or too little shows.

Paths name what is compared: `arg0`, `arg1` ... and `kw.NAME` for arguments, `ret` for the result; then
`.attribute`, `[i]` and `[key]`. `arg0` of a method is its `self`. A list or tuple of numbers is one leaf.
"""

from __future__ import annotations

import copy
import fnmatch
import importlib
import importlib.util
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from nosync import no_sync

Make = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
BACKENDS = {"torch": "launchers", "reference": "reference"}
VERSION = "0.25.1"
# Random cases a site should yield beside its named ones; `kunlunfork matrix run -n N` sets it.
N_RANDOM = int(os.environ.get("KUNLUN_PARITY_N", "6"))
SEED = int(os.environ.get("KUNLUN_PARITY_SEED", "0"))


class State(dict[str, Any]):
    """Path -> leaf (tensor, NumPy array, number, string, None, or a list of numbers) after upstream's run."""


@dataclass(frozen=True)
class Case:
    """One input of a site.

    make: builds fresh but identical (args, kwargs) at each call.
    ignore: from upstream's final state to path -> boolean mask, True where a tensor is not compared (entries
        that upstream leaves uninitialised).
    tolerance: path pattern -> (rtol, atol); everything else is compared bit by bit, NaN equal to NaN.
    skip: path patterns (fnmatch; a match covers what lies below it) that are not compared at all: raw
        addresses, staging buffers that only upstream uses.
    raises: the error that upstream raises and the fork must raise too.
    """

    name: str
    make: Make
    ignore: Callable[[State], dict[str, torch.Tensor]] | None = None
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    raises: type[BaseException] | None = None


@dataclass(frozen=True)
class Site:
    """One upstream launcher and the fork's `module:function`, the same under launchers/ and reference/.

    ids: of mrv2-sites.json. upstream: imports lazily and returns upstream's own function (see `original`).
    cases: named hard cases first, then N_RANDOM random ones drawn from the given generator.
    sample: draws one random case, for Hypothesis. allow: operation -> why it is no sync at this site.
    backends: those that have this function.
    """

    ids: tuple[int, ...]
    upstream: Callable[[], Any]
    launcher: str
    cases: Callable[[random.Random], Iterable[Case]]
    sample: Callable[[random.Random], Case] | None = None
    allow: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ("torch", "reference")


@dataclass(frozen=True)
class Report:
    """What a passed comparison saw: largest absolute error under a tolerance, seconds of the fork's call."""

    max_error: float
    seconds: float


class Mismatch(AssertionError):
    """The fork's result differs; the message lists the paths."""


# building inputs


def original(module: str, qualname: str) -> Any:
    """Upstream's own function, also where the fork has put a dispatcher (with `__wrapped__`) in its place."""
    target: Any = importlib.import_module(module)
    for part in qualname.split("."):
        target = getattr(target, part)
    while hasattr(target, "__wrapped__"):
        target = target.__wrapped__
    return target


def kunlun_package() -> str:
    """The name under which the fork's modules import: inside vLLM in a fork tree, else from the overlay."""
    inside = "vllm.v1.worker.gpu.kunlun"
    if importlib.util.find_spec("vllm") is not None and importlib.util.find_spec(inside) is not None:
        return inside
    root = Path(__file__).resolve().parents[2] / "overlay" / VERSION / "vllm" / "v1" / "worker" / "gpu"
    if not (root / "kunlun").is_dir():
        raise RuntimeError(f"no fork here: neither {inside} nor {root / 'kunlun'} exists")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return "kunlun"


def implementation(launcher: str, backend: str) -> Any:
    """The fork's function for `module:function` in a backend."""
    module, _, function = launcher.partition(":")
    return getattr(importlib.import_module(f"{kunlun_package()}.{BACKENDS[backend]}.{module}"), function)


def fresh(*args: Any, **kwargs: Any) -> Make:
    """A `make` that deep-copies these: strides and shared storages survive, NumPy views of tensors don't."""
    return lambda: copy.deepcopy((args, kwargs))


def poison(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Contiguous tensor in which every element is a different, improbable value (bool: alternating)."""
    n = math.prod(shape)
    ramp = torch.arange(n)
    if dtype is torch.bool:
        flat = ramp % 2 == 0
    elif dtype.is_floating_point:
        flat = (-1000.0 - (ramp % 499)).to(dtype)
    else:
        top = min(torch.iinfo(dtype).max, 2**31 - 1)
        flat = (top - 11 - ramp % (top // 2)).to(dtype)
    return flat.reshape(shape)


def ints(rng: random.Random, *shape: int, low: int, high: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Random integers in [low, high)."""
    flat = [rng.randrange(low, high) for _ in range(math.prod(shape))]
    return torch.tensor(flat, dtype=dtype).reshape(shape)


def floats(rng: random.Random, *shape: int, scale: float = 3.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed floats."""
    generator = torch.Generator().manual_seed(rng.randrange(2**62))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def cumulative(lens: Iterable[int], pad_to: int | None = None, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """[0, l0, l0+l1, ...], its last value repeated up to `pad_to` entries."""
    sums = [0]
    for n in lens:
        sums.append(sums[-1] + n)
    if pad_to is not None:
        sums += [sums[-1]] * (pad_to - len(sums))
    return torch.tensor(sums, dtype=dtype)


# walking

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


def _walk_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    state = State()
    seen: set[int] = set()
    for i, value in enumerate(args):
        walk(f"arg{i}", value, state, seen)
    for name, value in kwargs.items():
        walk(f"kw.{name}", value, state, seen)
    return state


def _matches(path: str, patterns: Iterable[str]) -> bool:
    # A bracket in a path is not a character class.
    for pattern in patterns:
        literal = pattern.replace("[", "[[]")
        if any(fnmatch.fnmatchcase(path, literal + tail) for tail in ("", ".*", "[[]*", "#*")):
            return True
    return False


# comparing


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


class _Comparison:
    def __init__(self, case: Case, masks: Mapping[str, torch.Tensor]) -> None:
        self.case = case
        self.masks = masks
        self.problems: list[str] = []
        self.max_error = 0.0

    def states(self, want: State, got: State) -> None:
        for path in sorted(want.keys() | got.keys()):
            if _matches(path, self.case.skip):
                continue
            if path not in want or path not in got:
                self.problems.append(f"{path}: only {'upstream' if path in want else 'the fork'} has it")
                continue
            self.leaf(path, want[path], got[path])
        self.outside(want, got)

    def leaf(self, path: str, want: Any, got: Any) -> None:
        if type(want) is not type(got):
            self.problems.append(f"{path}: {type(got).__name__}, want {type(want).__name__}")
        elif isinstance(want, torch.Tensor):
            self.tensor(path, want, got)
        elif isinstance(want, np.ndarray):
            if want.dtype != got.dtype or want.shape != got.shape:
                self.problems.append(f"{path}: {got.dtype}{got.shape}, want {want.dtype}{want.shape}")
            elif want.dtype == object:
                if want.tolist() != got.tolist():
                    self.problems.append(f"{path}: {got.tolist()}, want {want.tolist()}")
            else:
                self.tensor(path, torch.from_numpy(want.copy()), torch.from_numpy(got.copy()))
        elif want != got and not (want != want and got != got):
            self.problems.append(f"{path}: {got!r}, want {want!r}")

    def tensor(self, path: str, want: torch.Tensor, got: torch.Tensor) -> None:
        if want.dtype != got.dtype or want.shape != got.shape:
            self.problems.append(f"{path}: {got.dtype}{tuple(got.shape)}, want {want.dtype}{tuple(want.shape)}")
            return
        tolerance = next((t for p, t in self.case.tolerance.items() if _matches(path, (p,))), None)
        wrong = _differences(want, got, tolerance)
        if path in self.masks:
            wrong &= ~self.masks[path]
        if tolerance is not None and want.numel():
            error = (got.double() - want.double()).abs()
            if path in self.masks:
                error = error.masked_fill(self.masks[path], 0.0)
            error = error[error.isfinite()]
            self.max_error = max(self.max_error, float(error.max()) if error.numel() else 0.0)
        if wrong.any():
            where = [tuple(i) for i in wrong.nonzero().tolist()]
            some = ", ".join(f"{i}: {got[i].item()!r} want {want[i].item()!r}" for i in where[:4])
            self.problems.append(f"{path}: {len(where)} of {want.numel()} differ; {some}")

    def outside(self, want: State, got: State) -> None:
        """Bytes of a storage that no compared tensor shows must be as upstream left them, too."""
        groups: dict[int, list[str]] = {}
        for path, value in want.items():
            if isinstance(value, torch.Tensor) and path in got and isinstance(got[path], torch.Tensor):
                groups.setdefault(value.untyped_storage().data_ptr(), []).append(path)
        for paths in groups.values():
            storage = want[paths[0]].untyped_storage()
            others = {got[p].untyped_storage().data_ptr() for p in paths}
            if any(_matches(p, self.case.skip) for p in paths) or len(others) > 1:
                continue
            other = got[paths[0]].untyped_storage()
            if storage.nbytes() != other.nbytes():
                self.problems.append(f"{paths[0]}: storage of {other.nbytes()} bytes, want {storage.nbytes()}")
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
                self.problems.append(f"storage of {paths[0]}: {int(wrong.sum())} bytes outside the tensor differ")

    def identity(self, want: _Run, got: _Run) -> None:
        """Same addresses kept, and results alias the same arguments in the same way."""
        for path, (before, after) in want.addresses.items():
            if _matches(path, self.case.skip) or path not in got.addresses:
                continue
            was, now = got.addresses[path]
            if (before == after) != (was == now):
                self.problems.append(f"{path}: {'moved to another address' if was != now else 'should move'}")
        for path, value in want.state.items():
            if not path.startswith("ret") or not isinstance(value, torch.Tensor) or not value.numel():
                continue
            other = got.state.get(path)
            if not isinstance(other, torch.Tensor) or _matches(path, self.case.skip):
                continue
            mine, theirs = _aliased(value, want.state), _aliased(other, got.state)
            if mine != theirs:
                self.problems.append(f"{path}: shares memory with {theirs or 'nothing'}, want {mine or 'nothing'}")
            elif mine and (value.stride(), value.storage_offset()) != (
                other.stride(),
                other.storage_offset(),
            ):
                self.problems.append(f"{path}: a different view of {mine[0]}")
            elif not mine and value.is_contiguous() and not other.is_contiguous():
                self.problems.append(f"{path}: not contiguous")


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


# running


@dataclass
class _Run:
    before: State
    state: State
    addresses: dict[str, tuple[int, int]]
    error: BaseException | None
    seconds: float


def _run(function: Any, case: Case, guard: Any = None) -> _Run:
    args, kwargs = case.make()
    start = _walk_call(args, kwargs)
    before = State({k: v.clone() if isinstance(v, torch.Tensor) else copy.copy(v) for k, v in start.items()})
    pointers = {k: v.data_ptr() for k, v in start.items() if isinstance(v, torch.Tensor)}
    error: BaseException | None = None
    result = None
    began = time.perf_counter()
    try:
        if guard is None:
            result = function(*args, **kwargs)
        else:
            with guard:
                result = function(*args, **kwargs)
    except BaseException as e:
        if case.raises is None or not isinstance(e, case.raises):
            raise
        error = e
    seconds = time.perf_counter() - began
    state = _walk_call(args, kwargs)
    addresses = {
        k: (pointers[k], v.data_ptr()) for k, v in state.items() if isinstance(v, torch.Tensor) and k in pointers
    }
    walk("ret", result, state)
    return _Run(before, state, addresses, error, seconds)


_last: tuple[Site, Case, _Run] | None = None


def _oracle(site: Site, case: Case) -> _Run:
    """Upstream's run; kept for the next backend of the same case."""
    global _last
    if _last is None or _last[0] is not site or _last[1] is not case:
        _last = (site, case, _run(site.upstream(), case))
    return _last[2]


def check(site: Site, case: Case, backend: str) -> Report:
    """Run upstream and the fork on equal inputs. Raises Mismatch, or HostSync for the torch backend."""
    want = _oracle(site, case)
    function = implementation(site.launcher, backend)
    got = _run(function, case, no_sync(site.allow) if backend == "torch" else None)
    if case.raises is not None and (want.error is None or got.error is None):
        raise Mismatch(f"{site.launcher}, {case.name}, {backend}: want {case.raises.__name__} from both")
    inputs = _Comparison(case, {})
    inputs.states(want.before, got.before)
    if inputs.problems:
        raise Mismatch(f"{case.name}: make() is not repeatable\n  " + "\n  ".join(inputs.problems))
    comparison = _Comparison(case, case.ignore(want.state) if case.ignore else {})
    comparison.states(want.state, got.state)
    comparison.identity(want, got)
    if comparison.problems:
        raise Mismatch(f"{site.launcher}, {case.name}, {backend}\n  " + "\n  ".join(comparison.problems))
    return Report(comparison.max_error, got.seconds)
