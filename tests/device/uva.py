"""The buffers of kunlun/uva.py on a device whose stream lags behind: `python uva.py`, with the fork tree on PYTHONPATH.

Each step the host writes new values, tells the buffer, and launches a reader; the device starts reading when the host
is many steps ahead. What is read must be what the host had written when it launched that reader.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.kunlun import uva

DEVICE = torch.device("cuda:0")


def main() -> None:
    print("views:", uva.views_work(DEVICE))
    uva.install(DEVICE)
    rng = random.Random(0)
    backed = buffer_utils.UvaBackedTensor((4, 256), torch.int32)
    pool = buffer_utils.UvaBufferPool(256, torch.int32)
    pinned = torch.zeros(256, dtype=torch.int32, pin_memory=True)
    # New pinned memory is had only by waiting for the device: let there be enough, as there is after some steps.
    for power in range(2, 14):
        blocks = [torch.empty(1 << power, dtype=torch.uint8, pin_memory=True) for _ in range(700)]
        del blocks
    for lag in (10_000, 4_000_000_000):
        expected, seen = [], []
        torch.cuda.synchronize()
        torch.cuda._sleep(lag)
        torch.cuda.set_sync_debug_mode("error")
        # Few: the driver holds no more than about a thousand launches before it waits.
        for step in range(90):
            backed.np[rng.randrange(4), rng.randrange(256)] = step
            seen.append(backed.copy_to_uva().clone())
            expected.append(backed.np.copy())
            values = [rng.randrange(1000) for _ in range(rng.randrange(1, 256))]
            seen.append(pool.copy_to_uva(values).clone())
            expected.append(np.array(values, dtype=np.int32))
            pinned.fill_(step)
            seen.append(pool.copy_to_gpu(pinned))
            expected.append(np.full(256, step, dtype=np.int32))
        torch.cuda.set_sync_debug_mode("default")
        ahead = not torch.cuda.current_stream().query()
        wrong = sum(not np.array_equal(s.cpu().numpy(), e) for s, e in zip(seen, expected, strict=True))
        print(f"lag {lag}: host ahead of the device: {ahead}; {len(seen)} reads, {wrong} wrong")
        assert wrong == 0


if __name__ == "__main__":
    main()
