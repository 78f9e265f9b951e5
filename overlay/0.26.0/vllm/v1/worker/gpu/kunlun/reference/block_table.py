# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1, row by row."""

import torch

# vllm.v1.attention.backends.utils.PAD_SLOT_ID
PAD_SLOT_ID = -1


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: tuple[torch.Tensor, ...] | None = None,
    out_ptrs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Copy each request's blocks into its batch row; zero the padding rows."""
    out = tuple(self.input_block_tables) if out is None else out
    num_reqs = idx_mapping.shape[0]
    for group, target in enumerate(out):
        for row in range(num_reqs_padded):
            if row >= num_reqs:
                target[row] = 0
                continue
            request = int(idx_mapping[row])
            n = int(self.num_blocks.gpu[group, request])
            target[row, :n] = self.block_tables[group].gpu[request, :n]
    return tuple(table[:num_reqs_padded] for table in out)


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Find each token's slot; pad the rest of the buffer."""
    out = self.slot_mappings if out is None else out
    num_reqs = idx_mapping.shape[0]
    starts = query_start_loc.tolist()
    for group in range(self.num_kv_cache_groups):
        table = self.block_tables[group].gpu
        size = self.kernel_block_sizes[group]
        slots = out[group]
        for row in range(num_reqs):
            request = int(idx_mapping[row])
            for token in range(starts[row], starts[row + 1]):
                block, offset = divmod(int(positions[token]), size * self.cp_size)
                number = int(table[request, block])
                if offset // self.cp_interleave % self.cp_size != self.cp_rank:
                    slots[token] = PAD_SLOT_ID
                    continue
                round_, rest = divmod(offset, self.cp_interleave * self.cp_size)
                # With one rank this is the offset itself.
                local = round_ * self.cp_interleave + rest % self.cp_interleave
                slots[token] = number * size + local
        slots[starts[num_reqs] :] = PAD_SLOT_ID
    return out[:, :num_tokens_padded]
