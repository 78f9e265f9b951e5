# SPDX-License-Identifier: Apache-2.0
"""Site 40: zero freshly allocated blocks of the KV cache."""

import numpy as np

from ..kv_segments import segments
from ..staging import to_device


def zero_block_ids(self, block_ids: list[int]) -> None:
    """Zero the given blocks (the scheduler's ids) in every segment; the list may be empty.

    Raises UnsupportedOnKunlun where kv_segments.keep_kv_caches was not called.
    """
    if not block_ids or self._meta is None:
        return
    views = segments(self)
    ids = to_device(np.array(block_ids, dtype=np.int64), self.device)
    for view in views:
        view.index_fill_(0, ids, 0)
