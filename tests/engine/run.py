"""Run engines in this process, one after another, and write down what they said: `python run.py JOB.json OUT.json`.

Runs in the engine environment. A job is {"models": DIR, "oracle": bool, "engines": [...]}; an engine is
{"name", "env": variables for this engine alone, "llm": arguments of LLM (model and draft by name), "log_drafts": bool,
"kernel_block_size": int, "zero_blocks": bool, "count_draws": bool, "may_fail": bool, "no_views": bool, "ranks": bool,
"calls": [{"name", "prompts": token ids, "params": one or one a prompt}]}.

With "oracle" the process runs upstream's own kernels, in Triton's interpreter, as tests/parity does.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))

from e2e import engine as engines
from e2e.engine import quiet_threads


def main(job_file: str, out_file: str) -> None:
    quiet_threads()
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    engines.prepare(oracle=bool(job.get("oracle")))
    results = {}
    for engine in job["engines"]:
        with engines.environment(engine.get("env", {})):
            results[engine["name"]] = _engine(engine, Path(job["models"]))
    Path(out_file).write_text(json.dumps(results), encoding="utf-8")


def _engine(engine: dict[str, Any], models: Path) -> dict[str, Any]:
    if size := engine.get("kernel_block_size"):
        _split_blocks(size)
    if engine.get("zero_blocks"):
        _want_zero_blocks()
    if engine.get("no_views"):
        engines.hide_views()
    try:
        llm = engines.make(engine.get("llm", {}), models)
    except Exception as e:  # a job may be about the refusal
        if not engine.get("may_fail"):
            raise
        return {"error": f"{type(e).__name__}: {e}"}
    result: dict[str, Any] = {"runner": _runner(llm), "calls": {}}
    if engine.get("ranks"):
        result["plans"] = llm.collective_rpc(_plan_of_rank)
    zeroed = _watch_zero_blocks(llm) if engine.get("zero_blocks") else None
    drafts = _log_drafts(llm) if engine.get("log_drafts") else None
    draws = _count_draws() if engine.get("count_draws") else None
    for call in engine["calls"]:
        before = engines.metrics(llm)
        started = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in call["prompts"]],
            engines.params(call.get("params", {})),
            use_tqdm=False,
        )
        seconds = time.perf_counter() - started
        result["calls"][call["name"]] = {
            "tokens": [list(o.outputs[0].token_ids) for o in outputs],
            "logprobs": [engines.logprobs(o.outputs[0].logprobs) for o in outputs],
            "prompt_logprobs": [engines.logprobs(o.prompt_logprobs) for o in outputs],
            "cached": [o.num_cached_tokens for o in outputs],
            "metrics": {k: engines.minus(v, before[k]) for k, v in engines.metrics(llm).items()},
            "seconds": seconds,
        }
    if drafts is not None:
        result["drafts"] = drafts
    if zeroed is not None:
        result["zeroed"] = zeroed
    if draws is not None:
        result["draws"] = sum(draws)
    engines.end(llm)
    del llm
    gc.collect()
    return result


def _plan_of_rank(worker: Any) -> str:
    return f"{type(worker.model_runner).__name__}: {worker.model_runner.kunlun_plan}"


def _split_blocks(size: int) -> None:
    """Let attention take cache blocks of this size only, so that the manager's larger ones are split."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(lambda: [size])  # type: ignore[method-assign]


def _want_zero_blocks() -> None:
    """Let engines zero new cache blocks, as they do for hybrid models."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    KVCacheConfig.needs_kv_cache_zeroing = True  # type: ignore[assignment]


def _watch_zero_blocks(llm: Any) -> list[list[bool]]:
    """For each segment of each block that is zeroed from now on: was it dirty, is it zero."""
    from vllm.v1.worker.gpu.kunlun.kv_segments import segments

    zeroer = engines.model_runner(llm).kv_block_zeroer
    zero_block_ids = zeroer.zero_block_ids
    zeroed: list[list[bool]] = []

    def watched(block_ids: list[int]) -> None:
        blocks = [view[block] for view in segments(zeroer) for block in block_ids]
        before = [bool(block.any()) for block in blocks]
        zero_block_ids(block_ids)
        zeroed.extend([dirty, not block.any()] for dirty, block in zip(before, blocks, strict=True))

    zeroer.zero_block_ids = watched
    return zeroed


def _runner(llm: Any) -> dict[str, Any] | None:
    """What runs: the runner's class, its plan and where each site's code comes from (fork only)."""
    runner = engines.model_runner(llm)
    if runner is None:
        return None
    about: dict[str, Any] = {"class": f"{type(runner).__module__}.{type(runner).__qualname__}"}
    plan = getattr(runner, "kunlun_plan", None)
    if plan is not None:
        from vllm import triton_utils
        from vllm.v1.worker.gpu import buffer_utils
        from vllm.v1.worker.gpu.kunlun.activation import BINDER

        kunlun = type(BINDER).__module__.rpartition(".")[0]
        about["plan"] = str(plan)
        about["backend"] = plan.backend
        about["owners"] = BINDER.owners()
        about["next_power_of_2 of 5"] = triton_utils.triton.next_power_of_2(5)
        about["cache_groups"] = runner.block_tables.num_kv_cache_groups
        about["buffers"] = buffer_utils.UvaBuffer.__name__
        about["targets"] = {
            str(site): f"{fn.__module__.removeprefix(kunlun + '.')}:{fn.__name__}" for site, fn in plan.targets.items()
        }
    return about


def _log_drafts(llm: Any) -> list[list[list[int]]]:
    """The drafts of every step from now on, one list a request of the batch."""
    speculator = engines.model_runner(llm).speculator
    propose = speculator.propose
    drafts: list[list[list[int]]] = []

    def logged(*args: Any, **kwargs: Any) -> Any:
        proposed = propose(*args, **kwargs)
        drafts.append(proposed.tolist())
        return proposed

    speculator.propose = logged
    return drafts


def _count_draws() -> list[int]:
    """Gets a 1 whenever the fork's torch launchers compute random numbers."""
    from vllm.v1.worker.gpu.kunlun import rng

    draws: list[int] = []
    rounds = getattr(rng._rounds, "counted", rng._rounds)

    def counted(*args: Any, **kwargs: Any) -> Any:
        draws.append(1)
        return rounds(*args, **kwargs)

    counted.counted = rounds  # type: ignore[attr-defined]
    rng._rounds = counted
    return draws


if __name__ == "__main__":
    main(*sys.argv[1:])
