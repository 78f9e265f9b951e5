# SPDX-License-Identifier: Apache-2.0
"""One engine after another in this process: how each is made, what it is asked, what it says, as plain JSON.

An engine is {"llm": arguments of `LLM` (model and draft by name), "env": variables for it alone}. What it is asked is
a call: {"prompts": token ids or text, "params": one or one a prompt} and, of choice, "adapters" (a name or null a
prompt), "arrive" (the step before which each prompt comes), "abort" ({step: numbers of prompts}).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

# What an engine needs here whatever it runs; a call finishes with its own length.
LLM_DEFAULTS = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 64 << 20,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
    "seed": 0,
}
PARAMS_DEFAULTS = {"temperature": 0.0, "ignore_eos": True}
# An engine that has not ended after so many steps goes round in circles.
STEPS = 5000


def quiet_threads() -> None:
    """One thread for torch: these models are small, and waiting threads starve each other on a busy machine."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def prepare(*, oracle: bool) -> None:
    """Once in a process, before vLLM loads. oracle: upstream's own kernels, in Triton's interpreter."""
    os.environ.update({"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"})
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    _stand_in_for("lmformatenforcer", TokenEnforcer=object)
    _complete_streams()
    if oracle:
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        import interpreter

        interpreter.prepare()
        # The interpreter cannot run this one kernel; upstream's own torch path does the same.
        from vllm.v1.sample.ops import topk_topp_sampler

        topk_topp_sampler.HAS_TRITON = False


def _stand_in_for(name: str, **attributes: Any) -> None:
    """vLLM imports each of its grammar back ends for any structured request, also those that nobody asked for."""
    if importlib.util.find_spec(name) is None:
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update(attributes)


def _complete_streams() -> None:
    """Upstream's stand-ins for streams on a CPU forget `Tensor.record_stream`, which drafts under a grammar need."""
    import torch

    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def options(llm: dict[str, Any], models: Path) -> dict[str, Any]:
    """Arguments of `LLM`, with the folders of the models that `llm` names."""
    made = {**LLM_DEFAULTS, **llm}
    made["model"] = str(models / made["model"])
    if draft := made.pop("draft", None):
        spec = {"method": "dspark", "num_speculative_tokens": 4, **draft}
        made["speculative_config"] = {**spec, "model": str(models / spec["model"])}
    return made


def hide_views() -> None:
    """Let V2 keep its state as on a device that has no view of host memory; for the rest of the process."""
    from vllm.v1.worker.gpu.kunlun import uva

    uva.views_work = lambda device: (False, "the test wants it so")


def make(llm: dict[str, Any], models: Path) -> Any:
    from vllm import LLM

    # Runner V1 of a CPU knows no other way.
    with _asynchronous(llm.get("async_scheduling", False) and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"):
        return LLM(**options(llm, models))


@contextmanager
def _asynchronous(wanted: bool) -> Iterator[None]:
    """Async scheduling on a CPU, where upstream turns it off whatever is asked: it gains nothing there."""
    if not wanted:
        yield
        return
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def keep(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(keep)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        CpuPlatform.check_and_update_config = check  # type: ignore[method-assign]


def end(llm: Any) -> None:
    """Its memory is free once nobody has it any more."""
    llm.llm_engine.engine_core.shutdown()


def ask(llm: Any, call: dict[str, Any], models: Path) -> dict[str, Any]:
    """What the engine says to a call: {"requests": one a prompt, "counters": what it counted}."""
    before = metrics(llm)
    if "arrive" in call or "abort" in call:
        said = _stepwise(llm, call)
    else:
        adapters = [_adapter(name, models) for name in call.get("adapters", [])] or None
        said = llm.generate(
            [prompt(p) for p in call["prompts"]], params(call.get("params", {})), use_tqdm=False, lora_request=adapters
        )
    counters = {k: minus(v, before[k]) for k, v in metrics(llm).items()}
    return {"requests": [_request(output) for output in said], "counters": counters}


def _stepwise(llm: Any, call: dict[str, Any]) -> list[Any]:
    """The last output of each request; None of one that was aborted before it said anything."""
    engine = llm.llm_engine
    count = len(call["prompts"])
    wanted = call.get("params", {})
    each = params(wanted if isinstance(wanted, list) else [wanted] * count)
    arrive = call.get("arrive", [0] * count)
    aborts = {int(step): numbers for step, numbers in call.get("abort", {}).items()}
    last: list[Any] = [None] * count
    names = {f"request {i}": i for i in range(count)}
    for step in range(STEPS):
        for i in (i for i in range(count) if arrive[i] == step):
            engine.add_request(f"request {i}", prompt(call["prompts"][i]), each[i])
        engine.abort_request([f"request {i}" for i in aborts.get(step, ())])
        for output in engine.step():
            last[names[output.request_id]] = output
        if step >= max(arrive) and not engine.has_unfinished_requests():
            return last
    raise AssertionError(f"requests have not ended after {STEPS} steps")


def prompt(given: Any) -> Any:
    return given if isinstance(given, str) else {"prompt_token_ids": given}


def _adapter(name: str | None, models: Path) -> Any:
    from vllm.lora.request import LoRARequest

    return None if name is None else LoRARequest(name, 1 + sum(name.encode()), str(models / name))


def params(given: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if isinstance(given, list):
        return [params(p) for p in given]
    given = {**PARAMS_DEFAULTS, **given}
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    if "logit_bias" in given:
        given["logit_bias"] = {int(k): v for k, v in given["logit_bias"].items()}
    return SamplingParams(**given)


def _request(output: Any) -> dict[str, Any] | None:
    if output is None:
        return None
    return {
        "completions": [
            {
                "tokens": list(c.token_ids),
                "text": c.text,
                "finish": c.finish_reason,
                "stop": c.stop_reason,
                "logprobs": logprobs(c.logprobs),
            }
            for c in output.outputs
        ],
        "prompt_logprobs": logprobs(output.prompt_logprobs),
        "cached": output.num_cached_tokens,
    }


def logprobs(positions: Any) -> Any:
    """Per position the ids and their log probabilities, most probable first."""
    if positions is None:
        return None
    return [
        None if p is None else sorted(([t, v.logprob] for t, v in p.items()), key=lambda x: (-x[1], x[0]))
        for p in positions
    ]


def metrics(llm: Any) -> dict[str, Any]:
    """Drafts and preemptions so far."""
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:")
        if name.startswith("spec_decode_num_") or name == "num_preemptions":
            name = name.removeprefix("spec_decode_")
            found[name] = list(metric.values) if hasattr(metric, "values") else metric.value
    return found


def minus(now: Any, before: Any) -> Any:
    return [a - b for a, b in zip(now, before, strict=True)] if isinstance(now, list) else now - before


def model_runner(llm: Any) -> Any:
    """The runner, where the engine lives in this process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    worker = None if core is None else getattr(core.model_executor, "driver_worker", None)
    return None if worker is None else worker.worker.model_runner
