# SPDX-License-Identifier: Apache-2.0
"""Site 13: positions of multi-dimensional rotary embeddings."""

import torch

from ..ragged import flat, segment_ids


def prepare_positions(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    prefill_lens: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Write self.positions [num_dims, max_num_tokens + 1] up to the last token; what lies behind it stays.

    Rows that have not computed their whole prefill take the positions staged for them, the others count on from
    their request's delta.
    """
    num_reqs = idx_mapping.shape[0]
    # The column behind max_num_tokens is never a token's.
    positions = self.positions[:, :-1]
    length = positions.shape[1]
    if num_reqs == 0 or length == 0:
        return
    computed = num_computed_tokens.index_select(0, idx_mapping)
    staged = computed < prefill_lens.index_select(0, idx_mapping)
    shift = computed - query_start_loc[:num_reqs]
    delta = self.prefill_delta.gpu.index_select(0, idx_mapping)
    batch_rows = segment_ids(query_start_loc, num_reqs, length)
    is_token = batch_rows < num_reqs
    batch_rows.clamp_(max=num_reqs - 1)

    place = shift.index_select(0, batch_rows) + torch.arange(length, device=positions.device)
    table = self.prefill_positions.gpu
    # Row and dimension are one index of the table: request * num_dims + dimension.
    first = idx_mapping.index_select(0, batch_rows).to(torch.int64) * (self.num_dims * table.stride(0))
    first += place.clamp(0, table.shape[1] - 1)
    dims = torch.arange(self.num_dims, device=positions.device).unsqueeze(1) * table.stride(0)
    known = flat(table).index_select(0, (first + dims).view(-1)).view_as(positions)
    counted = place.add_(delta.index_select(0, batch_rows))
    new = torch.where(staged.index_select(0, batch_rows), known, counted)
    torch.where(is_token, new, positions, out=positions)
