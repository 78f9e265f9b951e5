# SPDX-License-Identifier: Apache-2.0
"""Site 4: local sequence lengths of decode context parallelism."""

import torch


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
) -> None:
    """Write each request's share of its KV cache on this rank, and 0 for the padding rows.

    dcp_local_seq_lens [max_num_reqs] is written whole; seq_lens [>= num_reqs]. One rank: nothing is written.
    """
    if dcp_size == 1:
        return
    lens = seq_lens[:num_reqs]
    turn = dcp_size * cp_interleave
    rounds = torch.div(lens, turn, rounding_mode="floor")
    rest = (lens - rounds * turn - dcp_rank * cp_interleave).clamp_(0, cp_interleave)
    torch.add(rest, rounds, alpha=cp_interleave, out=dcp_local_seq_lens[:num_reqs])
    dcp_local_seq_lens[num_reqs:].zero_()
