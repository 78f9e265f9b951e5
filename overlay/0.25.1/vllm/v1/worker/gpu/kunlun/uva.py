# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device in the place of views of host memory, for devices that have none.

Upstream's state on the host (UvaBackedTensor), the staging of writes (UvaBufferPool) and the token ids of all requests
(UvaBuffer) are pinned memory that kernels read through a view. Without views each gets a tensor of the device, always
at the same address, that is copied to in the order of the stream: what was launched before still reads the old values,
and the memory that a copy reads is pinned for that copy alone, so that no step can write over it.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vllm.logger import init_logger
from vllm.utils import torch_utils
from vllm.v1.worker.gpu import buffer_utils

from .binder import DriftError
from .staging import to_device

logger = init_logger(__name__)

# A buffer of more bytes is worth a line in the log: upstream has it in host memory.
_LARGE = 64 << 20


@functools.cache
def views_work(device: torch.device) -> tuple[bool, str]:
    """Whether `device` reads what the host writes, through upstream's view of pinned memory; (whether, why not).

    `is_uva_available()` only asks whether memory can be pinned. Waits for the device; the answer is kept.
    """
    if device.type == "cpu":
        return True, "host memory is the device's"
    try:
        host = torch.zeros(4, dtype=torch.int32, pin_memory=True)
        view = torch_utils.get_accelerator_view_from_cpu_tensor(host)
        host.copy_(torch.arange(4, dtype=torch.int32))
        # On the device, and not through the view's own memory.
        seen = (view.to(device) + 1).tolist()
    except Exception as e:  # noqa: BLE001 - a driver may raise anything
        what = ": ".join((type(e).__name__, *str(e).strip().splitlines()[:1]))
        return False, f"no view of host memory: {what}"
    if seen != [1, 2, 3, 4]:
        return False, f"a view of host memory holds {seen}, not [1, 2, 3, 4]"
    return True, "views of host memory work"


class DeviceBuffer:
    """What `UvaBuffer` is to its users: `uva` [*size], zeroed."""

    device: torch.device

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype):
        shape = (size,) if isinstance(size, int) else tuple(size)
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > _LARGE:
            logger.info(
                "a buffer of %s %s takes %.2f GiB of the device, which cannot see host memory", list(shape), dtype,
                num_bytes / 2**30,
            )  # fmt: skip
        self.uva = torch.zeros(shape, dtype=dtype, device=self.device)


def _pool_init(self: Any, size: int | Sequence[int], dtype: torch.dtype, max_concurrency: int | None = None) -> None:
    self.size = size
    self.dtype = dtype
    # Kept for whoever looks: copies in the order of the stream need no turns.
    self.max_concurrency = buffer_utils._DEFAULT_MAX_CONCURRENCY if max_concurrency is None else max_concurrency
    self._curr = 0
    self._uva_bufs: list[DeviceBuffer] = []


def _pool_copy_to_uva(self: Any, x: torch.Tensor | np.ndarray | list) -> torch.Tensor:
    if not self._uva_bufs:
        self._uva_bufs.append(DeviceBuffer(self.size, self.dtype))
    return _write(self._uva_bufs[0].uva[: len(x)], x)


def _pool_copy_to_gpu(self: Any, x: torch.Tensor | np.ndarray, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is None:
        out = torch.empty((len(x), *x.shape[1:]), dtype=self.dtype, device=DeviceBuffer.device)
    return _write(out, x)


def _write(out: torch.Tensor, x: torch.Tensor | np.ndarray | list) -> torch.Tensor:
    """Copy host data to `out`, which may have another dtype."""
    host = x if isinstance(x, torch.Tensor) else torch.from_numpy(np.asarray(x))
    host = host.to(out.dtype)
    if host.is_pinned():
        # Else there would be no copy: the caller goes on writing to `x` while the transfer waits for its turn.
        host = host.clone()
    return out.copy_(to_device(host.numpy(), out.device), non_blocking=True)


def _backed_init(self: Any, size: int | Sequence[int], dtype: torch.dtype, max_concurrency: int | None = None) -> None:
    self.dtype = dtype
    self.cpu = torch.zeros(size, dtype=dtype, device="cpu", pin_memory=False)
    self.np = self.cpu.numpy()
    self.pool = buffer_utils.UvaBufferPool(size, dtype, max_concurrency)
    self.kunlun_device = DeviceBuffer(size, dtype).uva
    # What the device has, or will have when the stream gets there.
    self.kunlun_sent = np.zeros_like(self.np)
    self.gpu = self.kunlun_device


def _backed_copy_to_uva(self: Any, n: int | None = None) -> torch.Tensor:
    self.gpu = self.kunlun_device if n is None else self.kunlun_device[:n]
    wanted, sent = (self.np, self.kunlun_sent) if n is None else (self.np[:n], self.kunlun_sent[:n])
    if not np.array_equal(wanted, sent):
        _write(self.gpu, wanted)
        sent[...] = wanted
    return self.gpu


_REPLACED: dict[tuple[str, str], Callable[..., Any]] = {
    ("UvaBufferPool", "__init__"): _pool_init,
    ("UvaBufferPool", "copy_to_uva"): _pool_copy_to_uva,
    ("UvaBufferPool", "copy_to_gpu"): _pool_copy_to_gpu,
    ("UvaBackedTensor", "__init__"): _backed_init,
    ("UvaBackedTensor", "copy_to_uva"): _backed_copy_to_uva,
}


def install(device: torch.device) -> None:
    """Take the place of upstream's buffers in this process, for `device`; again is fine.

    Raises:
        DriftError: upstream's classes are not those that this was made for.
    """
    problems = []
    for (owner, name), ours in _REPLACED.items():
        theirs = getattr(getattr(buffer_utils, owner, None), name, None)
        if theirs is None:
            problems.append(f"{buffer_utils.__name__}.{owner}.{name} is gone")
        elif list(inspect.signature(theirs).parameters) != list(inspect.signature(ours).parameters):
            problems.append(f"{buffer_utils.__name__}.{owner}.{name} has other parameters")
    if not hasattr(buffer_utils, "UvaBuffer"):
        problems.append(f"{buffer_utils.__name__}.UvaBuffer is gone")
    if problems:
        raise DriftError(problems)
    DeviceBuffer.device = device
    buffer_utils.UvaBuffer = DeviceBuffer  # type: ignore[misc, assignment]
    for (owner, name), ours in _REPLACED.items():
        setattr(getattr(buffer_utils, owner), name, ours)
