# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1: block tables of the batch, and the cache slot of each of its tokens.

Upstream's kernels find the tables by raw address; here they are taken from the object itself.
"""

import torch

from ..ragged import flat, segment_ids

# vllm.v1.attention.backends.utils.PAD_SLOT_ID
PAD_SLOT_ID = -1


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: tuple[torch.Tensor, ...] | None = None,
    out_ptrs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Copy each request's blocks into its batch row, and zero the padding rows.

    idx_mapping [num_reqs] int32 or int64. Entries of a row past its number of blocks, and rows past
    num_reqs_padded, keep what they held. Returns, per KV cache group, the first num_reqs_padded rows of its table
    of `out` (context parallel prefill), or else of the persistent ones, the same memory at every step; out_ptrs, the
    addresses of `out`, is not read.
    """
    if out is None:
        out = tuple(self.input_block_tables)
    else:
        assert out_ptrs is not None
        assert len(out) == self.num_kv_cache_groups
    num_reqs = idx_mapping.shape[0]
    num_blocks = self.num_blocks.gpu.index_select(1, idx_mapping)
    for group, (source, target) in enumerate(zip(self.block_tables, out)):
        rows = target[:num_reqs]
        columns = torch.arange(target.shape[1], dtype=torch.int32, device=target.device)
        used = columns < num_blocks[group].unsqueeze(1)
        torch.where(used, source.gpu.index_select(0, idx_mapping), rows, out=rows)
        if num_reqs_padded > num_reqs:
            target[num_reqs:num_reqs_padded].zero_()
    return tuple(target[:num_reqs_padded] for target in out)


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Slot of each token in each KV cache group; PAD_SLOT_ID behind the last token, to the end of the buffer.

    query_start_loc [> num_reqs]; positions int64 [>= number of tokens], the bound that the host knows. Under
    context parallelism a token of another rank gets PAD_SLOT_ID. Returns a view [groups, num_tokens_padded] of `out`,
    or else of the persistent buffer.
    """
    num_reqs = idx_mapping.shape[0]
    out = self.slot_mappings if out is None else out
    limit = out.shape[1]
    length = min(positions.shape[0], limit) if num_reqs else 0
    out[:, length:limit].fill_(PAD_SLOT_ID)
    if length:
        positions = positions[:length]
        batch_rows = segment_ids(query_start_loc, num_reqs, length)
        is_token = batch_rows < num_reqs
        rows = idx_mapping.index_select(0, batch_rows.clamp_(max=num_reqs - 1))
        pad = out.new_full((), PAD_SLOT_ID)
        for group, table in enumerate(self.block_tables):
            slots, mine = _slots(self, self.kernel_block_sizes[group], table.gpu, rows, positions)
            if mine is not None:
                mine &= is_token
            torch.where(is_token if mine is None else mine, slots, pad, out=out[group, :length])
    return out[:, :num_tokens_padded]


def _slots(
    self, size: int, table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Slots of `positions` of the requests `rows`, and which of them are this rank's (None: all)."""
    blocks = torch.div(positions, size * self.cp_size, rounding_mode="floor")
    # What stands behind the last token is stale and may point anywhere.
    blocks.clamp_(0, table.shape[1] - 1)
    entries = torch.add(blocks, rows, alpha=table.stride(0))
    numbers = flat(table).index_select(0, entries)
    if self.cp_size == 1:
        # number * size + (position - block * size)
        return torch.add(positions, numbers - blocks, alpha=size), None
    offsets = torch.sub(positions, blocks, alpha=size * self.cp_size)
    turns = torch.div(offsets, self.cp_interleave, rounding_mode="floor")
    rounds = torch.div(turns, self.cp_size, rounding_mode="floor")
    # The offset without the runs that other ranks keep.
    local = torch.sub(offsets, turns - rounds, alpha=self.cp_interleave)
    mine = torch.sub(turns, rounds, alpha=self.cp_size) == self.cp_rank
    return torch.add(local, numbers, alpha=size), mine
