# SPDX-License-Identifier: Apache-2.0
"""Rows of different length laid end to end, without asking the device how long they are."""

import torch


def segment_ids(offsets: torch.Tensor, num_rows: int, length: int) -> torch.Tensor:
    """Row of each of `length` elements, int64; `num_rows` for the elements behind the last row.

    offsets [> num_rows]: row r owns elements offsets[r] to offsets[r + 1]; it may be empty. The first is 0, and
    offsets[num_rows] is at most `length`, which the host knows. Two kernels of `length`; no searchsorted, since
    Kunlun has none.
    """
    ends = offsets[1 : num_rows + 1]
    # One mark where each row ends (and the next begins): rows that are empty add up at the same place.
    marks = torch.zeros(length + 1, dtype=torch.int64, device=offsets.device)
    marks.index_add_(0, ends, marks.new_ones(num_rows))
    return marks.cumsum(0)[:length]


def flat(table: torch.Tensor) -> torch.Tensor:
    """One-dimensional window on a table, no copy: element (row, column) is at row * table.stride(0) + column.

    table: 1-D, or 2-D with unit inner stride; rows may be apart. A reshape would copy such a table and lose writes.
    """
    if table.dim() == 1:
        return table
    rows, columns = table.shape
    if rows == 0 or columns == 0:
        return table.reshape(-1)
    span = (rows - 1) * table.stride(0) + columns
    return table.as_strided((span,), (1,))
