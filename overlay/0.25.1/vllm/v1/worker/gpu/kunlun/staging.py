# SPDX-License-Identifier: Apache-2.0
"""Bring host data to a device without waiting for it."""

import functools

import numpy as np
import torch


@functools.cache
def _pins() -> bool:
    """Whether memory can be pinned here; without, a copy waits until its source has been read."""
    try:
        return torch.zeros(1).pin_memory().is_pinned()
    except RuntimeError:
        return False


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of `array` on `device`, in one transfer through pinned memory; on a CPU, the array's own memory."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if _pins() else host).to(device, non_blocking=True)
