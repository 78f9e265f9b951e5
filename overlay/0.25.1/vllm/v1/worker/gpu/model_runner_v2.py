# SPDX-License-Identifier: Apache-2.0
"""Model Runner V2 as the fork runs it: upstream's runner behind a mixin.

The workers import `GPUModelRunner` and `CPUModelRunner` from here; these are
`ModelRunnerV2` and its kin, made by `runner_class` from upstream's classes.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

from vllm.config import VllmConfig
from vllm.distributed import parallel_state
from vllm.logger import init_logger
from vllm.v1.worker.gpu import model_runner as upstream
from vllm.v1.worker.gpu.kunlun import backend, probe, stamp, switches
from vllm.v1.worker.gpu.kunlun.activation import BINDER
from vllm.v1.worker.gpu.kunlun.sites import SITES

logger = init_logger(__name__)


class KunlunRunnerMixin:
    """Stands before a V2 runner class of upstream's."""

    kunlun_plan: backend.Plan

    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, *args: Any, **kwargs: Any
    ) -> None:
        # Before the first launch, and before anything allocates for one.
        self.kunlun_plan = backend.agree(lambda: _activate(device), _gather)
        logger.info(
            "%s: %s runs %s", stamp.read(), type(self).__name__, self.kunlun_plan
        )
        super().__init__(vllm_config, device, *args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        # Speculators and model states have loaded by now, and perhaps a plugin
        # that replaces the same launchers.
        BINDER.settle()


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


def _activate(device: torch.device) -> backend.Plan:
    plan = backend.decide(
        switches.read(os.environ), lambda: probe.triton_launches(device), SITES
    )
    BINDER.activate(plan.targets)
    return plan


def _gather(told: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """What all ranks that start together have told; a collective call."""
    if not torch.distributed.is_initialized():
        return [told]
    world = parallel_state.get_world_group()
    ranks = [told] * world.world_size
    torch.distributed.all_gather_object(ranks, told, group=world.cpu_group)
    return ranks
