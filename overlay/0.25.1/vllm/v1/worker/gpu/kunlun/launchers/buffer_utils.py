# SPDX-License-Identifier: Apache-2.0
"""Sites 2 and 3: writes that the host has staged, applied to state on the device.

The staged rows, starts and contents are Python lists: where each value goes is worked out on the host, and one
packed buffer of positions and values crosses to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..ragged import flat
from ..staging import to_device

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


def apply_write(self) -> None:
    """Write the staged runs into `self.gpu` (any device, host memory too) and forget them.

    A run that overlaps an earlier one wins. Nothing staged: nothing happens.
    """
    if self._staged_write_indices:
        _apply((self,), (self.gpu,), self.dtype)


def apply(
    self,
    tensors: Sequence[StagedWriteTensor],
    output_ptrs: torch.Tensor,
    output_strides: torch.Tensor,
) -> None:
    """The same for several int32 tensors with one transfer. The raw addresses and strides are not used."""
    if any(t._staged_write_indices for t in tensors):
        _apply(tensors, [t.gpu for t in tensors], torch.int32)


def _apply(tensors: Sequence[StagedWriteTensor], targets: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    places: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for tensor, target in zip(tensors, targets):
        place, value = _positions(tensor, target.stride(0), _NUMPY[dtype])
        places.append(place)
        values.append(value)
    # Positions first: they are the wider, so that both halves stay aligned.
    packed = np.concatenate([*places, *values], axis=None, dtype=np.uint8, casting="no")
    on_device = to_device(packed, targets[0].device)
    split = sum(place.nbytes for place in places)
    where = on_device[:split].view(torch.int64)
    what = on_device[split:].view(dtype)
    done = 0
    for tensor, target, place in zip(tensors, targets, places):
        n = place.nbytes // 8
        if n:
            flat(target).index_copy_(0, where[done : done + n], what[done : done + n])
            done += n
    for tensor in tensors:
        tensor.clear_staged_writes()


def _positions(tensor: StagedWriteTensor, row_stride: int, dtype: type[np.generic]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the flat position (int64) and of the value of each staged element, every position once."""
    rows = np.array(tensor._staged_write_indices, dtype=np.int64)
    ends = np.array(tensor._staged_write_cu_lens, dtype=np.int64)
    begins = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    base = rows * row_stride + np.array(tensor._staged_write_starts, dtype=np.int64) - begins
    places = np.repeat(base, ends - begins) + np.arange(ends[-1] if len(ends) else 0)
    values = np.array(tensor._staged_write_contents, dtype=dtype)
    if len(set(tensor._staged_write_indices)) != len(rows):
        # Runs of one row may overlap; the later one counts, and an unordered scatter must not decide.
        _, last = np.unique(places[::-1], return_index=True)
        keep = len(places) - 1 - last
        places, values = places[keep], values[keep]
    return places.view(np.uint8), values.view(np.uint8)
