# SPDX-License-Identifier: Apache-2.0
"""Sites 2 and 3, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor


def apply_write(self) -> None:
    """Write each staged run behind its start in its row, in the order of staging, and forget them."""
    begin = 0
    for row, start, end in zip(self._staged_write_indices, self._staged_write_starts, self._staged_write_cu_lens):
        values = torch.tensor(self._staged_write_contents[begin:end], dtype=self.dtype)
        # Rows of a one-dimensional state have one element; a longer run goes on into the next.
        target = self.gpu[row:] if self.gpu.dim() == 1 else self.gpu[row]
        target[start : start + len(values)] = values.to(target.device)
        begin = end
    self.clear_staged_writes()


def apply(
    self,
    tensors: Sequence[StagedWriteTensor],
    output_ptrs: torch.Tensor,
    output_strides: torch.Tensor,
) -> None:
    """The same for each tensor in turn."""
    for tensor in tensors:
        apply_write(tensor)
