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
        torch.accelerator.synchronize()
        self._id_cap = n * 2
        self._allocate_id_buffers()
    # Upstream's buffers take turns; nothing else is done with them here.
    self._id_buffer_index = (self._id_buffer_index + 1) % self.max_concurrency
    for view in views:
        for block in block_ids:
            view[block] = 0
