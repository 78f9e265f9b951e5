# SPDX-License-Identifier: Apache-2.0
"""Site 4, row by row."""

import torch


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
) -> None:
    """Deal tokens to the ranks in turns of cp_interleave and count this rank's."""
    if dcp_size == 1:
        return
    for row in range(dcp_local_seq_lens.shape[0]):
        local = 0
        if row < num_reqs:
            full_turns, rest = divmod(int(seq_lens[row]), dcp_size * cp_interleave)
            local = full_turns * cp_interleave + min(max(rest - dcp_rank * cp_interleave, 0), cp_interleave)
        dcp_local_seq_lens[row] = local
