"""Engines of one variant on a device, one after another: what they say, what they draft, what lies in the KV cache.

python engine.py --models DIR --out FILE [--hide-views] [--graphs] [--forbid-syncs] [--rate]

`--hide-views` makes upstream's view of host memory fail, as on Kunlun. `--forbid-syncs` runs whole steps under
torch.cuda.set_sync_debug_mode("error"). `--rate` times greedy decoding. `--wide` starts at 1,024
requests, which is what warm-up and the memory profile then take. compare.py reads the files of all variants.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
VOCABULARY = 151000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    for flag in ("--hide-views", "--graphs", "--forbid-syncs", "--rate", "--wide"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if options.hide_views:
        hide_views()
    said: dict[str, Any] = {"options": {k: str(v) for k, v in vars(options).items()}, "engines": {}}
    for name, model, draft, calls in jobs(options):
        said["engines"][name] = engine(options, model, draft, calls)
        options.out.write_text(json.dumps(said))
        print("done", name, {k: v["seconds"] for k, v in said["engines"][name]["calls"].items()}, flush=True)


def hide_views() -> None:
    import vllm.utils.torch_utils as torch_utils
    from vllm.v1.worker.gpu import buffer_utils

    def none(*_: Any) -> Any:
        raise RuntimeError("hidden: this device has no view of host memory")

    torch_utils.get_accelerator_view_from_cpu_tensor = none
    buffer_utils.get_accelerator_view_from_cpu_tensor = none


def prompts(count: int, length: int, seed: int = 7) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(rng.randrange(length // 2, length))] for _ in range(count)]


def jobs(options: argparse.Namespace) -> list[tuple[str, str, str | None, list[dict[str, Any]]]]:
    greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
    seeded = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "ignore_eos": True, "detokenize": False}
    thirty_two = [{"name": "greedy", "prompts": prompts(32, 128), "params": {**greedy, "max_tokens": 64}}]
    if options.wide:
        many = [{"name": "greedy", "prompts": prompts(256, 32), "params": {**greedy, "max_tokens": 16}}]
        return [("acc67", "target", "dspark_acc67", many), ("no drafts", "target", None, many)]
    if options.rate:
        rate = [{"name": f"rate {n}", "prompts": prompts(n, 128), "params": {**greedy, "max_tokens": 256}, "times": 5}
                for n in (8, 32)]  # fmt: skip
        return [("acc100", "target", "dspark_acc100", [*thirty_two, *rate]), ("no drafts", "target", None, rate)]
    features = [
        {"name": "seeded", "prompts": prompts(16, 96), "params": {**seeded, "max_tokens": 48, "seed": 5}},
        {"name": "penalties", "prompts": prompts(16, 96),
         "params": {**greedy, "max_tokens": 48, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 3}},
    ]  # fmt: skip
    return [
        ("acc100", "target", "dspark_acc100", thirty_two),
        ("acc67", "target", "dspark_acc67", thirty_two),
        ("soft, drafts", "soft", "dspark_acc67", [*thirty_two, *features]),
        *([] if options.graphs else [("soft", "soft", None, [*thirty_two, *features])]),
    ]


def engine(options: argparse.Namespace, model: str, draft: str | None, calls: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    from vllm import LLM, SamplingParams

    settings: dict[str, Any] = {
        "model": str(options.models / model), "skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 64,
        "max_num_batched_tokens": 8192, "kv_cache_memory_bytes": 8 << 30, "gpu_memory_utilization": 0.3,
        "enforce_eager": not options.graphs,
        "enable_prefix_caching": False, "disable_log_stats": False, "seed": 0,
    }  # fmt: skip
    if options.wide:
        settings["max_num_seqs"] = 1024
    if options.graphs:
        settings["compilation_config"] = {"cudagraph_capture_sizes": SIZES + ([384, 512] if draft else [])}
    if draft:
        settings["speculative_config"] = {
            "method": "dspark", "model": str(options.models / draft), "num_speculative_tokens": 7,
        }  # fmt: skip
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    llm = LLM(**settings)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    from vllm.v1.worker.gpu import buffer_utils

    result: dict[str, Any] = {
        "start": time.perf_counter() - began,
        "class": f"{type(runner).__module__}.{type(runner).__qualname__}",
        "plan": str(getattr(runner, "kunlun_plan", None)),
        "buffers": buffer_utils.UvaBuffer.__name__,
        "memory": torch.cuda.max_memory_allocated(),
        "calls": {},
    }
    drafts = log_drafts(runner) if draft else []
    for call in calls:
        params = SamplingParams(**call["params"])
        asked = [{"prompt_token_ids": ids} for ids in call["prompts"]]
        llm.generate(asked[:4], SamplingParams(**{**call["params"], "max_tokens": 8}), use_tqdm=False)
        drafts.clear()
        seconds = []
        for _ in range(call.get("times", 1)):
            if not call.get("times"):
                # In every variant, so that the second run gets the same blocks.
                with ForbiddenSyncs(runner) if options.forbid_syncs else contextlib.nullcontext():
                    llm.generate(asked, params, use_tqdm=False)
                drafts.clear()
            torch.cuda.synchronize()
            began = time.perf_counter()
            outputs = llm.generate(asked, params, use_tqdm=False)
            seconds.append(time.perf_counter() - began)
            if call.get("times"):
                drafts.clear()
        result["calls"][call["name"]] = {
            "tokens": [list(o.outputs[0].token_ids) for o in outputs],
            "logprobs": [_logprobs(o.outputs[0].logprobs or []) for o in outputs],
            "wrong": wrong(options.models, model, call, outputs),
            "drafts": fingerprint(drafts),
            "kv": kv(runner),
            "rates": [sum(len(o.outputs[0].token_ids) for o in outputs) / s for s in seconds],
            "seconds": round(statistics.median(seconds), 3),
        }  # fmt: skip
        drafts.clear()
    llm.llm_engine.engine_core.shutdown()
    del llm, runner
    gc.collect()
    torch.cuda.empty_cache()
    return result


def _logprobs(positions: Any) -> list[Any]:
    return [sorted((token, entry.logprob) for token, entry in position.items()) for position in positions]


def log_drafts(runner: Any) -> list[Any]:
    """Copies, on the device, of what the speculator proposes from now on."""
    seen: list[Any] = []
    propose = runner.speculator.propose

    def logged(*args: Any, **kwargs: Any) -> Any:
        proposed = propose(*args, **kwargs)
        seen.append(proposed.clone())
        return proposed

    runner.speculator.propose = logged
    return seen


class ForbiddenSyncs:
    """Whole steps of the runner wait for nothing."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def __enter__(self) -> None:
        import torch

        def strict(call: Any) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                torch.cuda.set_sync_debug_mode("error")
                try:
                    return call(*args, **kwargs)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

            return run

        for name in ("execute_model", "sample_tokens"):
            setattr(self.runner, name, strict(getattr(self.runner, name)))

    def __exit__(self, *_: object) -> None:
        for name in ("execute_model", "sample_tokens"):
            delattr(self.runner, name)


def fingerprint(tensors: list[Any]) -> list[int]:
    import torch

    if not tensors:
        return []
    sums = [(t.long() * torch.arange(1, t.numel() + 1, device=t.device).view_as(t)).sum() for t in tensors]
    return torch.stack(sums).tolist()


def kv(runner: Any) -> list[int]:
    """A sum over the bits of some layers' KV caches; layouts and blocks are the same in every variant."""
    import torch

    caches = [c for c in runner.kv_caches if isinstance(c, torch.Tensor)]
    sums = []
    for cache in (caches[0], caches[len(caches) // 2], caches[-1]):
        bits = cache.flatten().view(torch.int16)
        total = 0
        for part in bits.split(1 << 26):
            weights = torch.arange(part.numel(), device=part.device) % 8191 + 1
            total += int((part.long() * weights).sum())
        sums.append(total)
    return sums


def wrong(models: Path, model: str, call: dict[str, Any], outputs: list[Any]) -> int | None:
    """Tokens that are not those of the permutation model; None for other models."""
    import torch

    if model != "target" or call["params"]["temperature"] > 0 or "presence_penalty" in call["params"]:
        return None
    table = torch.load(models / "perm.pt").tolist()
    bad = 0
    for ids, output in zip(call["prompts"], outputs, strict=True):
        at = ids[-1]
        for token in output.outputs[0].token_ids:
            bad += table[at] != token
            at = token
    return bad


if __name__ == "__main__":
    main()
