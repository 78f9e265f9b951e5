# SPDX-License-Identifier: Apache-2.0
"""Site 40, block by block."""

from ..kv_segments import segments


def zero_block_ids(self, block_ids: list[int]) -> None:
    """Zero each block in each segment."""
    if not block_ids or self._meta is None:
        return
    for view in segments(self):
        for block in block_ids:
            view[block] = 0
