# SPDX-License-Identifier: Apache-2.0
"""Capture a launcher on one input, put another of the same shapes in its place, replay, compare with upstream.

What a replay gets wrong is what the host has read: a shape, a number, a decision. On a CUDA device the capture is a
CUDA graph. On a CPU it is a recording of the operators that ran, with the tensors that they ran on; like a graph, it
knows nothing of Python.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import harness
import torch
from compare import State, _matches, walk, walk_call
from harness import Case, Site
from nosync import HostSync, no_sync
from placing import DEVICE, home, place, stays
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Sites whose input is on the host: upstream launches them outside of its graphs, and a graph would repeat what the host
# said when it was captured.
ON_THE_HOST: Mapping[str, str] = {
    "buffer_utils:apply_write": "the host's list of staged writes",
    "buffer_utils:apply": "the host's lists of staged writes",
    "structured_outputs:apply_grammar_bitmask": "the host's bitmask and its requests",
    "worker_utils:zero_block_ids": "the host's list of blocks",
    "mamba_utils:batch_memcpy": "refused: raw addresses",
    "input_batch:post_update_compact": "its one sync is what it is for",
    "spec_decode_rejection_sampler:_get_logprobs_tensors": "how many logits each request has, from the host",
}

NOT_ALIKE = " (the host's data differ)"
OK, DIFFERS, NO_CAPTURE, NO_PAIR = "ok", "differs", "cannot be captured", "no two inputs of one shape"


class Capture(Protocol):
    """Runs `call` once so that `replay` can run it again on what its tensors hold then."""

    def record(self, call: Callable[[], Any]) -> Any: ...

    def replay(self) -> None: ...


class Recording(TorchDispatchMode):
    """A graph for a CPU: the operators in their order, and the tensors that they read and made."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Aliases: a tensor may be reshaped in place later.
        seen = _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, *seen, _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, out)))
        return out

    def record(self, call: Callable[[], Any]) -> Any:
        with self:
            return call()

    def replay(self) -> None:
        for func, args, kwargs, before in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(_pytree.tree_leaves(before), _pytree.tree_leaves(again), strict=True):
                # A view, or the very tensor that was written to, is there already.
                if isinstance(old, torch.Tensor) and old.untyped_storage().data_ptr() != _address(new):
                    old.copy_(new)


def _address(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Graph:
    """A CUDA graph."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    def record(self, call: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            return call()

    def replay(self) -> None:
        self.graph.replay()
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Pair:
    """Two inputs of the same shapes. `host_alike`: what lies on the host is the same, too."""

    first: Case
    second: Case
    host_alike: bool
    changed: int

    @property
    def name(self) -> str:
        return f"{self.first.name} -> {self.second.name}{'' if self.host_alike else NOT_ALIKE}"


@dataclass(frozen=True)
class Verdict:
    """What became of one pair, or of a site without one."""

    launcher: str
    backend: str
    outcome: str
    pair: str = ""
    why: str = ""


def _shape(state: State, skip: tuple[str, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What has to be the same for a replay, and what lies on the host besides."""
    device, host = [], []
    for path, value in sorted(state.items()):
        if _matches(path, skip):
            continue
        if isinstance(value, torch.Tensor):
            place = (value.storage_offset(), value.untyped_storage().nbytes())
            device.append((path, value.dtype, tuple(value.shape), value.stride(), *place))
        elif hasattr(value, "tobytes"):
            device.append((path, value.dtype, value.shape))
            host.append((path, value.tobytes()))
        elif isinstance(value, list):
            device.append((path, len(value)))
            host.append((path, repr(value)))
        else:
            device.append((path, repr(value)))
    return tuple(device), tuple(host)


def _changed(a: State, b: State, skip: tuple[str, ...]) -> int:
    """How many elements of tensors differ."""
    count = 0
    for path, x in a.items():
        if isinstance(x, torch.Tensor) and not _matches(path, skip):
            y = b[path]
            same = (x == y) | ((x != x) & (y != y)) if x.dtype.is_floating_point else x == y
            count += int((~same).sum())
    return count


def pairs(site: Site, count: int = 3, draws: int = 2000) -> list[Pair]:
    """Pairs of the site's cases and of drawn ones, those whose data differ most; alike on the host where there are.

    Drawing ends early when there are plenty to choose from.
    """
    seen: dict[Any, list[tuple[Case, State, Any]]] = {}
    found: list[Pair] = []
    for case in _pool(site, draws):
        if case.raises is not None:
            continue
        args, kwargs = case.make()
        state = walk_call(args, kwargs)
        shape, host = _shape(state, case.skip)
        others = seen.setdefault(shape, [])
        for other, before, its_host in others:
            changed = _changed(before, state, case.skip)
            if changed:
                found.append(Pair(other, case, host == its_host, changed))
        others.append((case, state, host))
        del others[4:]
        if sum(pair.host_alike for pair in found) >= 4 * count:
            break
    found.sort(key=lambda p: (not p.host_alike, -p.changed))
    return found[:count]


def _pool(site: Site, draws: int) -> Iterator[Case]:
    yield from harness.all_cases(site)
    if site.sample is not None:
        rng = random.Random(f"replay:{harness.SEED}:{site.launcher}")
        for number in range(draws):
            yield site.sample(rng, f"drawn{number}")  # type: ignore[call-arg]


def _put(source: State, target: State, skip: tuple[str, ...]) -> None:
    """Copy the tensors of one call into those of another; addresses (nobody compares them) and the host's stay."""
    done: set[int] = set()
    for path, x in target.items():
        if not isinstance(x, torch.Tensor) or stays(path, x) or _matches(path, skip):
            continue
        storage = x.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in done:
            done.add(storage.data_ptr())
            storage.copy_(source[path].untyped_storage())


def replayed(site: Site, pair: Pair, function: Callable[..., Any], capture: Capture) -> list[str]:
    """What differs from upstream on the second input, after a capture on the first; empty: nothing."""
    want = harness.run_upstream(site, pair.second)
    # Whatever is made once (tables, workspaces) is not to be made while capturing.
    args, kwargs = place(*pair.first.make())
    function(*args, **kwargs)
    args, kwargs = place(*pair.first.make())
    result = capture.record(lambda: function(*args, **kwargs))
    state = walk_call(args, kwargs)
    _put(walk_call(*place(*pair.second.make())), state, pair.second.skip)
    capture.replay()
    walk("ret", result, state)
    on_host = {path for path, value in state.items() if isinstance(value, torch.Tensor) and stays(path, value)}
    got = home(state)
    case = pair.second
    comparison = harness.comparison_of(case, want)
    tensors = {path for path, value in want.state.items() if isinstance(value, torch.Tensor)}
    shared = tensors & {path for path, value in got.items() if isinstance(value, torch.Tensor)}
    if missing := sorted(p for p in tensors - shared if not _matches(p, case.skip)):
        return [f"not a tensor: {', '.join(missing)}"]
    earlier = harness.run_upstream(site, pair.first).state if on_host else State()
    for path in shared & on_host:
        # The device has not written here: it holds what it held, or the second input where the device sees it too.
        if isinstance(earlier.get(path), torch.Tensor) and torch.equal(earlier[path], got[path]):
            shared.discard(path)
    comparison.states(State({p: want.state[p] for p in shared}), State({p: got[p] for p in shared}))
    return comparison.problems


def check(site: Site, backend: str, count: int = 3, draws: int = 2000) -> list[Verdict]:
    """All pairs of a site; a site whose cases are named ones only has no two of one shape."""
    return [verdict() for _, verdict in units(site, backend, count, draws)]


def units(site: Site, backend: str, count: int = 3, draws: int = 2000) -> list[tuple[str, Callable[[], Verdict]]]:
    """The same as `check`, each pair with its name, to be run one by one."""
    if site.sample is None:
        return []
    function = harness.implementation(site.launcher, backend)
    why_host = ON_THE_HOST.get(site.launcher, "")
    found = pairs(site, count, draws)
    if not found:
        return [("", lambda: Verdict(site.launcher, backend, NO_PAIR, why=why_host))]
    return [(pair.name, functools.partial(_verdict, site, backend, pair, function, why_host)) for pair in found]


def _verdict(site: Site, backend: str, pair: Pair, function: Callable[..., Any], why_host: str) -> Verdict:
    name = pair.name
    try:
        if DEVICE.type == "cpu":
            args, kwargs = pair.first.make()
            with no_sync(site.allow):
                function(*args, **kwargs)
            problems = replayed(site, pair, function, Recording())
        else:
            problems = replayed(site, pair, function, Graph())
    except (HostSync, RuntimeError, NotImplementedError) as e:
        if DEVICE.type != "cpu":
            torch.cuda.synchronize()
        what = ": ".join((type(e).__name__, *str(e).strip().splitlines()[:1]))
        return Verdict(site.launcher, backend, NO_CAPTURE, name, f"{why_host}; {what}" if why_host else what)
    if problems:
        what = "; ".join(problems)[:600]
        return Verdict(site.launcher, backend, DIFFERS, name, f"{why_host}; {what}" if why_host else what)
    return Verdict(site.launcher, backend, OK, name)


def unexpected(verdicts: list[Verdict]) -> list[Verdict]:
    """Those that are not ok at a site whose input is on the device."""
    return [v for v in verdicts if v.outcome != OK and v.launcher not in ON_THE_HOST]
