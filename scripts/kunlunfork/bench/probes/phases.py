"""What a decode step consists of: time by phase, and by phase the launches, copies, waits and operators of torch.

A phase is a call that upstream's runner (or the scheduler) makes in every step. It is timed by a wrapper in its place,
so phases nest: a phase's time has that of the phases inside it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

# Names of the launchers that a step calls, wherever a module of the runner holds them.
LAUNCHERS = (
    "expand_idx_mapping", "prepare_prefill_inputs", "prepare_pos_seq_lens", "combine_sampled_and_draft_tokens",
    "get_num_sampled_and_rejected", "post_update", "gumbel_sample", "apply_temperature", "rejection_sample",
    "prepare_dflash_inputs", "async_copy_to_gpu", "dispatch_cg_and_sync_dp", "build_slot_mappings_by_layer",
)  # fmt: skip
# Methods of the runner; `_x` are runner V1's.
RUNNER = (
    "execute_model", "sample_tokens", "finish_requests", "add_requests", "update_requests", "prepare_inputs",
    "prepare_attn", "sample", "postprocess_sampled", "_update_states", "_prepare_inputs", "_build_attention_metadata",
    "_model_forward", "_sample", "_bookkeeping_sync",
)  # fmt: skip
BELOW = (
    ("block_tables", ("apply_staged_writes", "gather_block_tables", "compute_slot_mappings")),
    ("model_state", ("prepare_attn",)),
    ("speculator", ("propose",)),
    ("cudagraph_manager", ("run_fullgraph",)),
)
STEP = "step"
WAIT = "wait for the device"
LABEL = "kunlunfork:"

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync", "cudaMemset")
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
KINDS = {
    **dict.fromkeys(LAUNCHES, "launches"),
    **dict.fromkeys(COPIES, "copies"),
    **dict.fromkeys(SYNCS, "syncs"),
    "cudaGraphLaunch": "graphs",
}


def _torch() -> Any:
    return importlib.import_module("torch")


class Phases:
    """Wraps the phases of one engine; `remove` puts everything back."""

    def __init__(self, core: Any, runner: Any) -> None:
        self.timing = self.marking = False
        self.times: dict[str, int] = defaultdict(int)
        self._undo: list[Callable[[], None]] = []
        for name in ("schedule", "update_from_output"):
            self._wrap(core.scheduler, name, f"scheduler.{name}")
        for name in RUNNER:
            self._wrap(runner, name, name)
        for part, names in BELOW:
            for name in names:
                self._wrap(getattr(runner, part, None), name, f"{part}.{name}")
        model = getattr(getattr(runner, "speculator", None), "model", None)
        for name in ("combine_hidden_states", "precompute_and_store_context_kv"):
            self._wrap(model, name, f"speculator.{name}")
        self._wrap(getattr(runner, "model", None), "compute_logits", "compute_logits")
        for module_name in [m for m in sys.modules if m.startswith("vllm.v1.worker.gpu.") and ".kunlun" not in m]:
            for name in LAUNCHERS:
                if name in vars(sys.modules[module_name]):
                    self._wrap(sys.modules[module_name], name, name)
        self._wrap_wait()

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name, None)
        if not callable(call):
            return
        had = name in vars(owner)
        setattr(owner, name, functools.wraps(call)(lambda *args, **kwargs: self.measured(label, call, args, kwargs)))
        self._undo.append(lambda: setattr(owner, name, call) if had else delattr(owner, name))

    def _wrap_wait(self) -> None:
        try:
            kind = importlib.import_module("vllm.v1.worker.gpu.async_utils").AsyncOutput
        except (ImportError, AttributeError):
            return
        call = kind.get_output

        def get_output(output: Any) -> Any:
            event = getattr(output, "copy_event", None)
            if event is not None:
                self.measured(WAIT, event.synchronize, (), {})
            return call(output)

        kind.get_output = get_output
        self._undo.append(lambda: setattr(kind, "get_output", call))

    def measured(self, label: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.marking:
            with _torch().profiler.record_function(LABEL + label):
                return call(*args, **kwargs)
        if not self.timing:
            return call(*args, **kwargs)
        began = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self.times[label] += time.perf_counter_ns() - began


def summary(steps: list[dict[str, int]]) -> dict[str, float]:
    """Median microseconds a step of each phase, the longest first; a phase that a step lacks counts as 0 there."""
    labels = {label for step in steps for label in step}
    found = {label: median(step.get(label, 0) for step in steps) / 1000 for label in labels}
    return {label: round(us, 1) for label, us in sorted(found.items(), key=lambda x: -x[1])}


def counts(events: Iterable[Any], steps: int) -> dict[str, Any]:
    """What a profile of `steps` steps saw, each number a step: in all, by phase (the innermost one), and kernels."""
    cpu = _torch().autograd.DeviceType.CPU
    events = list(events)
    on_host = sorted((e for e in events if e.device_type == cpu), key=lambda e: (e.time_range.start, -e.time_range.end))
    by_phase: dict[str, Counter[str]] = defaultdict(Counter)
    names: Counter[str] = Counter()
    for label, event in _innermost(on_host):
        kind = "aten ops" if event.name.startswith("aten::") else KINDS.get(event.name)
        if kind is not None:
            by_phase[label][kind] += 1
        if kind is not None and kind != "aten ops":
            names[event.name] += 1
    total = sum(by_phase.values(), Counter())

    def a_step(counter: Counter[str]) -> dict[str, float]:
        return {kind: round(n / steps, 2) for kind, n in sorted(counter.items())}

    spans = [
        (e.time_range.start, e.time_range.end) for e in events if e.device_type != cpu and not e.name.startswith(LABEL)
    ]
    return {
        "all": a_step(total),
        "calls": a_step(names),
        "by phase": {label: a_step(counter) for label, counter in by_phase.items()},
        "kernels": round(len(spans) / steps, 1),
        "device busy us": round(_covered(spans) / steps, 1),
    }


def _innermost(events: list[Any]) -> Iterator[tuple[str, Any]]:
    """Each event of the host with the phase that it happened in; sorted by start, the longer first."""
    open_phases: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        stack = open_phases[event.thread]
        while stack and stack[-1].time_range.end <= event.time_range.start:
            stack.pop()
        if event.name.startswith(LABEL):
            stack.append(event)
        else:
            yield (stack[-1].name.removeprefix(LABEL) if stack else "elsewhere"), event


def _covered(spans: list[tuple[float, float]]) -> float:
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return covered
