"""What was alive at the peak of an engine's start: `peak.py --models DIR --out FILE [--requests N] [--hide-views]`.

The blocks that PyTorch's allocator held when most was allocated, by the place in vLLM that asked for them; vLLM is
found on the path of this process. Two files side by side say what the fork holds that upstream does not.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from engine import hide_views


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--no-drafts", action="store_true")
    parser.add_argument("--hide-views", action="store_true")
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch

    if options.hide_views:
        hide_views()
    import vllm

    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=5_000_000)
    drafts = {} if options.no_drafts else {
        "speculative_config": {
            "method": "dspark", "model": str(options.models / "dspark_acc67"), "num_speculative_tokens": 7,
        }
    }  # fmt: skip
    vllm.LLM(
        str(options.models / "target"), skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=options.requests,
        max_num_batched_tokens=8192, kv_cache_memory_bytes=8 << 30, gpu_memory_utilization=0.3, enforce_eager=True,
        enable_prefix_caching=False, seed=0, **drafts,
    )  # fmt: skip
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    found = at_peak(trace)
    found["torch says"] = torch.cuda.max_memory_allocated()
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("peak MiB", round(found["peak"] / 2**20, 1), "torch says", round(found["torch says"] / 2**20, 1))
    for size, count, place in found["blocks"][:25]:
        print(f"{size / 2**20:10.1f} MiB {count:6} blocks  {place}")


def at_peak(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes by place when most was alive."""
    alive: dict[int, tuple[int, list[dict[str, Any]]]] = {}
    now = peak = 0
    last = 0
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            alive[event["addr"]] = (event["size"], event["frames"])
            now += event["size"]
            if now > peak:
                peak, last = now, index
        elif event["action"] == "free_requested" and event["addr"] in alive:
            now -= alive.pop(event["addr"])[0]
    alive.clear()
    for event in trace[: last + 1]:
        if event["action"] == "alloc":
            alive[event["addr"]] = (event["size"], event["frames"])
        elif event["action"] == "free_requested":
            alive.pop(event["addr"], None)
    sizes: dict[str, list[int]] = defaultdict(list)
    for size, frames in alive.values():
        sizes[place(frames)].append(size)
    blocks = sorted(((sum(s), len(s), name) for name, s in sizes.items()), reverse=True)
    return {"peak": peak, "blocks": blocks}


def place(frames: list[dict[str, Any]]) -> str:
    """The innermost places in vLLM."""
    ours = [f for f in frames if "/vllm/" in f["filename"]][:4]
    return " < ".join(f"{f['filename'].split('/vllm/')[-1]}:{f['line']} {f['name']}" for f in ours) or "elsewhere"


if __name__ == "__main__":
    main()
