# SPDX-License-Identifier: Apache-2.0
"""Sites 0 and 1, row by row."""

import torch

# vllm.v1.attention.backends.utils.PAD_SLOT_ID
PAD_SLOT_ID = -1


def gather_block_tables(
    self,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
) -> tuple[torch.Tensor, ...]:
    """Copy each request's blocks into its batch row; zero the padding rows."""
    num_reqs = idx_mapping.shape[0]
    for group, target in enumerate(self.input_block_tables):
        for row in range(num_reqs_padded):
            if row >= num_reqs:
                target[row] = 0
                continue
            request = int(idx_mapping[row])
            n = int(self.num_blocks.gpu[group, request])
            target[row, :n] = self.block_tables[group].gpu[request, :n]
    return tuple(table[:num_reqs_padded] for table in self.input_block_tables)


def compute_slot_mappings(
    self,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
) -> torch.Tensor:
    """Find each token's slot; pad the rest of the buffer."""
    num_reqs = idx_mapping.shape[0]
    starts = query_start_loc.tolist()
    for group in range(self.num_kv_cache_groups):
        table = self.block_tables[group].gpu
        size = self.kernel_block_sizes[group]
        out = self.slot_mappings[group]
        for row in range(num_reqs):
            request = int(idx_mapping[row])
            for token in range(starts[row], starts[row + 1]):
                block, offset = divmod(int(positions[token]), size * self.cp_size)
                number = int(table[request, block])
                if offset // self.cp_interleave % self.cp_size != self.cp_rank:
                    out[token] = PAD_SLOT_ID
                    continue
                round_, rest = divmod(offset, self.cp_interleave * self.cp_size)
                # With one rank this is the offset itself.
                local = round_ * self.cp_interleave + rest % self.cp_interleave
                out[token] = number * size + local
        out[starts[num_reqs] : self.max_num_batched_tokens] = PAD_SLOT_ID
    return self.slot_mappings[:, :num_tokens_padded]
