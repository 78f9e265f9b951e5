# SPDX-License-Identifier: Apache-2.0
"""Site 23, row by row."""

import torch


def apply_min_p(logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, min_p: torch.Tensor) -> None:
    """Set to -inf what is below the row's maximum + log(min_p)."""
    for row, request in zip(logits, expanded_idx_mapping.tolist(), strict=True):
        if request < 0 or float(min_p[request]) == 0.0:
            continue
        values = row.to(torch.float32)
        largest = max((v for v in values.tolist() if v == v), default=float("-inf"))
        threshold = torch.tensor(largest, device=row.device) + torch.log(min_p[request].to(torch.float32))
        row[values < threshold] = float("-inf")
