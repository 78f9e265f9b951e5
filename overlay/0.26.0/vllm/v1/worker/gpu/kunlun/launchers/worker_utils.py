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
        # A copy from the old buffers may still be under way.
        torch.accelerator.synchronize()  # sync-ok: as upstream, where more blocks are new than ever before
        self._id_cap = n * 2
        self._allocate_id_buffers()
    # As many buffers as batches in flight: none is written before its copy has been read.
    turn = self._id_buffer_index
    self._id_buffer_index = (turn + 1) % self.max_concurrency
    pinned = self._ids_pinned[turn][:n]
    pinned.copy_(torch.tensor(block_ids, dtype=torch.int64))
    ids = self._ids_gpu[turn][:n]
    ids.copy_(pinned, non_blocking=True)
    for view in views:
        view.index_fill_(0, ids, 0)
