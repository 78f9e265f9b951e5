# SPDX-License-Identifier: Apache-2.0
"""Site 13, token by token."""

import torch


def prepare_positions(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    prefill_lens: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Take the staged positions of prefilling rows; count on from the delta for the others."""
    for row, request in enumerate(idx_mapping.tolist()):
        computed = int(num_computed_tokens[request])
        staged = computed < int(prefill_lens[request])
        start, end = int(query_start_loc[row]), int(query_start_loc[row + 1])
        for i in range(end - start):
            for dim in range(self.num_dims):
                if staged:
                    value = int(self.prefill_positions.gpu[request * self.num_dims + dim, computed + i])
                else:
                    value = computed + i + int(self.prefill_delta.gpu[request])
                self.positions[dim, start + i] = value
