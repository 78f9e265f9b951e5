"""What of a pipeline's hand-over of sampled tokens works on a CPU: `pplimit.py FOLDER`; prints one JSON object.

The receiving rank of a pipeline of two, its group being this process alone: upstream's own code, no engine.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np

# Puts upstream's stand-ins for streams and events in place, as the CPU worker does.
import vllm.v1.worker.cpu.shm  # noqa: F401 isort: skip
import torch

from vllm.v1.worker.gpu import pp_utils


def main(folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1)
    handler = object.__new__(pp_utils.PPHandler)
    handler.is_last_rank, handler.last_rank, handler.max_sample_len = False, 0, 1
    handler.device, handler.broadcast_group = torch.device("cpu"), None
    handler.main_stream, handler.broadcast_stream = torch.cuda.current_stream(), torch.cuda.Stream()
    handler.queue, handler.req_idx_gen_np = deque([None, None]), np.zeros(4, dtype=np.int32)
    batch = SimpleNamespace(
        num_reqs=1, idx_mapping=torch.tensor([0]), idx_mapping_np=np.array([0]), num_computed_tokens_np=np.array([0]),
        num_scheduled_tokens=np.array([3]), prefill_len_np=np.array([3]), max_seq_len_np=np.array([9]),
    )  # fmt: skip
    said = {"receive": _said(lambda: handler.receive(batch))}
    said["wait"] = _said(lambda: handler.main_stream.wait_event(None))
    said["record_stream"] = _said(lambda: torch.zeros(1).record_stream(handler.main_stream))
    print(json.dumps(said))


def _said(call) -> str:
    try:
        call()
    except Exception as e:  # noqa: BLE001 - whatever it says is the answer
        return f"{type(e).__name__}: {e}"
    return "works"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
