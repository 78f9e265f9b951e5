# SPDX-License-Identifier: Apache-2.0
"""Site 40, block by block."""

import torch

from ..kv_segments import segments


def zero_block_ids(self, block_ids: list[int]) -> None:
    """Zero each block in each segment."""
    if not block_ids or self._meta is None:
        return
    views = segments(self)
    n = len(block_ids)
    if n > self._id_cap:
        self._id_cap = n * 2
        self._ids_pinned = torch.empty(self._id_cap, dtype=torch.int64, pin_memory=self.pin_memory)
        self._ids_gpu = torch.empty(self._id_cap, dtype=torch.int64, device=self.device)
    for view in views:
        for block in block_ids:
            view[block] = 0
