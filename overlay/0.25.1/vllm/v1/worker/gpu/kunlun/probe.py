# SPDX-License-Identifier: Apache-2.0
"""Whether a Triton kernel can be launched here, found out by launching one.

`HAS_TRITON` does not say: on Kunlun it is true in a worker, and then no kernel
loads.
"""

import functools

import torch

from vllm.triton_utils import HAS_TRITON, tl, triton


@triton.jit
def _increment_kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


@functools.cache
def triton_launches(device: torch.device) -> tuple[bool, str]:
    """Compile and launch a trivial kernel on `device`; (whether it works, why not).

    Waits for the device. The answer is kept for the life of the process.
    """
    if not HAS_TRITON:
        return False, "vLLM found no Triton"
    x = torch.full((1,), 41, dtype=torch.int32, device=device)
    try:
        _increment_kernel[(1,)](x)
        result = x.item()
    except Exception as e:  # noqa: BLE001 - a driver may raise anything
        # The first line only: compilers append their whole input.
        what = ": ".join((type(e).__name__, *str(e).strip().splitlines()[:1]))
        return False, f"a trivial Triton kernel does not launch: {what}"
    if result != 42:
        return False, f"a trivial Triton kernel computed {result}, not 42"
    return True, "a trivial Triton kernel launches"
