# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1, a launch for each KV cache group: see launchers/block_table.py, and tables.py for the kernels."""

import torch

from ..deferred import defer
from .tables import launch_gather, launch_slots


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: tuple[torch.Tensor, ...] | None = None,
    out_ptrs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Rows of the batch in the tables of `out` (context parallel prefill), or else in the persistent ones."""
    if out is None:
        out = tuple(self.input_block_tables)
    else:
        assert out_ptrs is not None
        assert len(out) == self.num_kv_cache_groups
    call = (self, idx_mapping, num_reqs_padded, out)
    if not defer("gather", call):
        launch_gather(*call)
    return tuple(target[:num_reqs_padded] for target in out)


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slots of the batch's tokens in `out`, or else in the persistent buffer."""
    out = self.slot_mappings if out is None else out
    call = (self, idx_mapping, query_start_loc, positions, out, out.shape[1])
    if not defer("slots", call):
        launch_slots(*call)
    return out[:, :num_tokens_padded]
