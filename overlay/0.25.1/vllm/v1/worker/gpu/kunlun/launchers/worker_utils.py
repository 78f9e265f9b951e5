# SPDX-License-Identifier: Apache-2.0
"""Site 40: zero freshly allocated blocks of the KV cache."""

import torch

from ..kv_segments import segments


def zero_block_ids(self, block_ids: list[int]) -> None:
    """Zero the given blocks (the scheduler's ids) in every segment; the list may be empty.

    Raises UnsupportedOnKunlun where kv_segments.keep_kv_caches was not called.
    """
    if not block_ids or self._meta is None:
        return
    views = segments(self)
    n = len(block_ids)
    if n > self._id_cap:
        self._id_cap = n * 2
        self._ids_pinned = torch.empty(self._id_cap, dtype=torch.int64, pin_memory=self.pin_memory)
        self._ids_gpu = torch.empty(self._id_cap, dtype=torch.int64, device=self.device)
    self._ids_pinned[:n].copy_(torch.tensor(block_ids, dtype=torch.int64))
    ids = self._ids_gpu[:n]
    ids.copy_(self._ids_pinned[:n], non_blocking=True)
    for view in views:
        view.index_fill_(0, ids, 0)
