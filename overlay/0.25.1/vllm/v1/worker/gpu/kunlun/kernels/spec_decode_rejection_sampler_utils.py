# SPDX-License-Identifier: Apache-2.0
"""Sites 32-37 where every request is greedy, in two launches: maxima of blocks of the logits, and the verdicts.

Everything else about verification is launchers/spec_decode_rejection_sampler_utils.py, and so are shapes and meaning.
"""

import torch

from vllm.triton_utils import tl, triton

from ..launchers import spec_decode_rejection_sampler_utils as _torch
from . import maxima


@triton.jit
def _verdict(
    sampled, counts, best, ids, num_blocks, draft_sampled, cu_num_logits, num_steps, STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    # STEPS >= num_steps + 1 rows of logits a request, WIDTH >= num_blocks.
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_num_logits + request).to(tl.int64)
    num_drafts = tl.load(cu_num_logits + request + 1) - start - 1
    step = tl.arange(0, STEPS)
    judged = (step <= num_drafts) & (step <= num_steps)
    is_draft = (step < num_drafts) & (step < num_steps)

    block = tl.arange(0, WIDTH)
    place = (start + step)[:, None] * num_blocks + block[None, :]
    present = judged[:, None] & (block < num_blocks)[None, :]
    winner = tl.argmax(tl.load(best + place, mask=present, other=float("-inf")), axis=1)
    token = tl.load(ids + (start + step) * num_blocks + winner, mask=judged, other=0).to(tl.int64)

    draft = tl.load(draft_sampled + start + 1 + step, mask=is_draft, other=-1).to(tl.int64)
    accepted = is_draft & (draft == token)
    # Up to the first that is not accepted; the last row has no draft and never is.
    count = tl.min(tl.where(accepted, STEPS, step), axis=0)
    outcome = tl.where(step < count, draft, token)
    tl.store(sampled + request * (num_steps + 1) + step, outcome, mask=step <= num_steps)
    tl.store(counts + request, count + 1)


def rejection_sample_greedy(
    # [num_logits, V]
    target_logits: torch.Tensor,
    # [max_num_reqs, num_speculative_steps, V]
    draft_logits: torch.Tensor | None,
    # [num_logits]
    draft_sampled: torch.Tensor,
    # [num_reqs + 1]
    cu_num_logits: torch.Tensor,
    # [num_logits]
    pos: torch.Tensor,
    # [num_reqs]
    idx_mapping: torch.Tensor,
    # [num_logits]
    expanded_idx_mapping: torch.Tensor,
    # [num_logits]
    expanded_local_pos: torch.Tensor,
    # [max_num_reqs]
    temperature: torch.Tensor,
    # [max_num_reqs]
    seed: torch.Tensor,
    num_speculative_steps: int,
    # [num_speculative_steps]
    synthetic_conditional_rates: torch.Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A program for a block of a row's columns, and one a request. Synthetic rates are torch's business."""
    if synthetic_conditional_rates is not None:
        return _torch.rejection_sample_greedy(
            target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, expanded_idx_mapping,
            expanded_local_pos, temperature, seed, num_speculative_steps, synthetic_conditional_rates, use_fp64,
            use_block_verification,
        )  # fmt: skip
    num_reqs, device = cu_num_logits.shape[0] - 1, target_logits.device
    sampled = torch.empty(num_reqs, num_speculative_steps + 1, dtype=torch.int64, device=device)
    counts = torch.empty(num_reqs, dtype=torch.int32, device=device)
    if num_reqs == 0:
        return sampled, counts
    num_logits, vocab = target_logits.shape
    if draft_logits is not None:
        vocab = min(vocab, draft_logits.shape[-1])
    best, ids, num_blocks = maxima.room(num_logits, vocab, device)
    maxima.block_maxima[(num_logits, num_blocks)](
        best, ids, target_logits, target_logits.stride(0), vocab, num_blocks, BLOCK=maxima.BLOCK
    )
    _verdict[(num_reqs,)](
        sampled, counts, best, ids, num_blocks, draft_sampled, cu_num_logits, num_speculative_steps,
        STEPS=triton.next_power_of_2(num_speculative_steps + 1), WIDTH=triton.next_power_of_2(num_blocks),
    )  # fmt: skip
    return sampled, counts
