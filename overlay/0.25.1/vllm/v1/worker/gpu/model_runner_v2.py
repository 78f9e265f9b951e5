# SPDX-License-Identifier: Apache-2.0
"""Model Runner V2 as the fork runs it: upstream's runner behind a mixin.

The workers import `GPUModelRunner` and `CPUModelRunner` from here; these are
`ModelRunnerV2` and its kin, made by `runner_class` from upstream's classes.
"""

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from vllm.config import VllmConfig
from vllm.distributed import parallel_state
from vllm.logger import init_logger
from vllm.v1.worker.gpu import model_runner as upstream
from vllm.v1.worker.gpu.kunlun import (
    backend,
    fixes,
    host_facts,
    kv_segments,
    placeholder,
    probe,
    stamp,
    switches,
    uva,
)
from vllm.v1.worker.gpu.kunlun.activation import BINDER
from vllm.v1.worker.gpu.kunlun.sites import SITES

logger = init_logger(__name__)


class KunlunRunnerMixin:
    """Stands before a V2 runner class of upstream's."""

    kunlun_plan: backend.Plan
    kunlun_switches: switches.Switches
    # Of the requests of a batch (host array): whether none draws random numbers.
    # None where nobody makes use of that.
    kunlun_all_greedy: Callable[[Any], bool] | None = None
    # `kunlun.kernels.head` where the launches of a step's head can go together.
    kunlun_head: Any = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device, *args: Any, **kwargs: Any) -> None:
        # Before the first launch, and before anything allocates for one.
        self.kunlun_switches = switches.read(os.environ)
        self.kunlun_plan = backend.agree(lambda: _activate(self.kunlun_switches, device), _gather)
        logger.info("%s: %s runs %s", stamp.read(), type(self).__name__, self.kunlun_plan)
        if self.kunlun_switches.upstream_fixes and not self.kunlun_plan.ours:
            logger.warning(
                "%s changes nothing where upstream's kernels run; set %s=torch",
                switches.UPSTREAM_FIXES,
                switches.KERNELS,
            )
        super().__init__(vllm_config, device, *args, **kwargs)
        # With DCP, upstream reads the lengths in the midst of it.
        if self.kunlun_plan.backend == "fused" and not self.use_dcp:  # type: ignore[attr-defined]
            from vllm.v1.worker.gpu.kunlun.kernels import head

            self.kunlun_head = head

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        # Speculators and model states have loaded by now, and perhaps a plugin
        # that replaces the same launchers.
        BINDER.settle()
        if self.kunlun_plan.ours and self.kunlun_switches.gumbel_greedy:
            self.kunlun_all_greedy = _sees_greedy(self.sampler)  # type: ignore[attr-defined]

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)  # type: ignore[misc]
        if self.kunlun_plan.ours:
            fixes.use_kernel_block_sizes(self.block_tables)  # type: ignore[attr-defined]

    def _init_kv_zero_meta(self) -> None:
        super()._init_kv_zero_meta()  # type: ignore[misc]
        if self.kunlun_plan.ours:
            layers = self.compilation_config.static_forward_context.values()  # type: ignore[attr-defined]
            kv_segments.keep_kv_caches(
                self.kv_block_zeroer,  # type: ignore[attr-defined]
                (getattr(layer, "kv_cache", None) for layer in layers),
            )

    def _kunlun_head(self) -> Any:
        # Context parallel prefill (0.26 and later) reads what was prepared while it prepares its own.
        return self.kunlun_head if getattr(self, "pcp_manager", None) is None else None

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        head = self._kunlun_head()
        with nullcontext() if head is None else head.inputs():
            return super().prepare_inputs(*args, **kwargs)  # type: ignore[misc]

    def prepare_attn(self, *args: Any, **kwargs: Any) -> Any:
        head = self._kunlun_head()
        with nullcontext() if head is None else head.attention():
            return super().prepare_attn(*args, **kwargs)  # type: ignore[misc]

    def sample(self, hidden_states: torch.Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        greedy = self.kunlun_all_greedy is not None and self.kunlun_all_greedy(input_batch.idx_mapping_np)
        with host_facts.batch(all_rows_greedy=greedy):
            return super().sample(hidden_states, input_batch, *args, **kwargs)  # type: ignore[misc]


class ModelRunnerV2(KunlunRunnerMixin, upstream.GPUModelRunner):
    """Model Runner V2."""


_classes: dict[type, type] = {upstream.GPUModelRunner: ModelRunnerV2}


def runner_class(base: type) -> type:
    """The fork's runner on top of `base`, a V2 runner class; one class for a base."""
    if issubclass(base, KunlunRunnerMixin):
        return base
    if base not in _classes:
        name = base.__name__ if base.__name__.endswith("V2") else f"{base.__name__}V2"
        cls = type(
            name,
            (KunlunRunnerMixin, base),
            {"__module__": __name__, "__qualname__": name, "__doc__": base.__doc__},
        )
        _classes[base] = cls
        # Where pickle looks for it.
        globals().setdefault(name, cls)
    return _classes[base]


def __getattr__(name: str) -> type:
    # Lazily: these bases import what only their devices have.
    if name == "GPUModelRunner":
        return ModelRunnerV2
    if name in ("CPUModelRunner", "CPUModelRunnerV2"):
        from vllm.v1.worker.cpu.model_runner import CPUModelRunner

        return runner_class(CPUModelRunner)
    if name == "XPUModelRunnerV2":
        from vllm.v1.worker.xpu_model_runner import XPUModelRunnerV2

        return runner_class(XPUModelRunnerV2)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _activate(wanted: switches.Switches, device: torch.device) -> backend.Plan:
    plan = backend.decide(wanted, lambda: probe.triton_launches(device), SITES)
    placeholder.complete()
    views, why = uva.views_work(device)
    if not views:
        logger.info("ModelRunnerV2 keeps its state on the device: %s", why)
        uva.install(device)
    if plan.ours:
        fixes.set_constants(wanted.upstream_fixes)
    BINDER.activate(plan.targets)
    return plan


def _sees_greedy(sampler: Any) -> Callable[[Any], bool] | None:
    # There is none on the ranks that do not sample, and a model state may bring
    # one of its own.
    if not isinstance(sampler, upstream.Sampler):
        return None
    from vllm.v1.worker.gpu.kunlun.launchers.sample_gumbel import all_rows_greedy

    return functools.partial(all_rows_greedy, sampler.sampling_states.temperature.np)


def _gather(told: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """What all ranks that start together have told; a collective call."""
    if not torch.distributed.is_initialized():
        return [told]
    world = parallel_state.get_world_group()
    ranks = [told] * world.world_size
    torch.distributed.all_gather_object(ranks, told, group=world.cpu_group)
    return ranks
