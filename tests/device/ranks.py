"""Two ranks on two GPUs: `python ranks.py --models DIR --out FILE`, one variant a process, as engine.py.

Says what each worker runs, and whether the tokens are the permutation model's; compare FILEs of all variants.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from engine import prompts, wrong


def plan(worker: Any) -> str:
    """What a worker of an engine runs."""
    runner = worker.model_runner
    return f"rank {worker.rank}: {type(runner).__module__}: {getattr(runner, 'kunlun_plan', None)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    # NVLink multicast can put a shared host's GPUs out of service.
    os.environ.update(
        VLLM_ALLOW_INSECURE_SERIALIZATION="1", VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_ALLREDUCE_USE_SYMM_MEM="0",
        NCCL_NVLS_ENABLE="0",
    )  # fmt: skip
    from vllm import LLM, SamplingParams

    began = time.perf_counter()
    llm = LLM(
        model=str(options.models / "target"), skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=64,
        max_num_batched_tokens=8192, kv_cache_memory_bytes=8 << 30, gpu_memory_utilization=0.3, enforce_eager=True,
        enable_prefix_caching=False, tensor_parallel_size=2, disable_custom_all_reduce=True, seed=0,
        speculative_config={
            "method": "dspark", "model": str(options.models / "dspark_acc67"), "num_speculative_tokens": 7,
        },
    )  # fmt: skip
    plans = llm.collective_rpc(plan)
    call = {"prompts": prompts(32, 128), "params": {"temperature": 0.0, "ignore_eos": True, "detokenize": False}}
    asked = [{"prompt_token_ids": ids} for ids in call["prompts"]]
    outputs = llm.generate(asked, SamplingParams(**call["params"], max_tokens=64), use_tqdm=False)
    tokens = [list(o.outputs[0].token_ids) for o in outputs]
    bad = wrong(options.models, "target", call, outputs)
    options.out.write_text(json.dumps({"plans": plans, "tokens": tokens, "wrong": bad}))
    print(json.dumps({"plans": plans, "wrong": bad, "tokens": sum(map(len, tokens)),
                      "seconds": round(time.perf_counter() - began)}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
