# SPDX-License-Identifier: Apache-2.0
"""Bring host data to a device without waiting for it."""

import numpy as np
import torch


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of `array` on `device`, in one transfer through pinned memory; on a CPU, the array's own memory."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)
