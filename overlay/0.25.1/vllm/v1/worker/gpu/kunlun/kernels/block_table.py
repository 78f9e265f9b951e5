# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1, a launch for each KV cache group: see launchers/block_table.py, and tables.py for the kernels."""

import torch

from ..deferred import defer
from .tables import launch_gather, launch_slots


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
) -> tuple[torch.Tensor, ...]:
    """Rows of the batch in the persistent tables."""
    call = (self, idx_mapping, num_reqs_padded, self.input_block_tables)
    if not defer("gather", call):
        launch_gather(*call)
    return tuple(target[:num_reqs_padded] for target in self.input_block_tables)


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
) -> torch.Tensor:
    """Slots of the batch's tokens in the persistent buffer."""
    call = (self, idx_mapping, query_start_loc, positions, self.slot_mappings, self.max_num_batched_tokens)
    if not defer("slots", call):
        launch_slots(*call)
    return self.slot_mappings[:, :num_tokens_padded]
