# SPDX-License-Identifier: Apache-2.0
"""Block verification of draft tokens (Sun et al., 2024), as upstream computes it: how far a block may be accepted.

R requests of up to S drafts, V vocabulary. All results float32 [R, S]; entries behind a request's drafts mean nothing.
"""

import torch

from .vocab import pieces


def joint_log_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """Running log of min(p / q so far, 1) from the steps' log(p / q) [R, S], rounded step by step as upstream does."""
    running = log_ratio.new_zeros(log_ratio.shape[0])
    columns = []
    for step in range(log_ratio.shape[1]):
        running = (running + log_ratio[:, step]).clamp_(max=0.0)
        columns.append(running)
    return torch.stack(columns, dim=1)


def residual_mass_certain(joint: torch.Tensor, next_logp: torch.Tensor) -> torch.Tensor:
    """The residual mass behind each step where the draft was certain of its token.

    joint: `joint_log_ratio`; next_logp [R, S]: the target's log probability of the following draft token.
    """
    return joint.exp() * (1.0 - next_logp.exp())


def residual_mass(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    temp: torch.Tensor,
    target_lse: torch.Tensor,
    draft_lse: torch.Tensor,
    joint: torch.Tensor,
    elements: int,
) -> torch.Tensor:
    """sum(max(joint ratio * target - draft, 0)) over the vocabulary at the position behind each step; 0 behind the last.

    target_logits [L, >= V], draft_logits [max_num_reqs, S, V]; rows [R, S]: the step's row of target_logits; slots [R]; temp
    float32 [R], not 0: the requests' temperatures, which draft_logits are from before.
    target_lse [L], draft_lse [R, S]. Three float32 of `elements` at once.
    """
    num_reqs, num_steps, vocab = slots.shape[0], draft_logits.shape[1], draft_logits.shape[2]
    mass = torch.zeros_like(joint)
    if num_steps == 1:
        return mass
    behind = rows[:, 1:].reshape(-1)
    ratio = joint[:, :-1].exp().unsqueeze(2)
    target_lse = target_lse[behind].unsqueeze(1)
    draft_lse = draft_lse[:, 1:].unsqueeze(2)
    for piece in pieces(behind.shape[0], vocab, elements):
        target = target_logits[:, piece].index_select(0, behind).to(torch.float32).sub_(target_lse).exp_()
        target = target.view(num_reqs, num_steps - 1, -1).mul_(ratio)
        draft = draft_logits[:, 1:, piece].index_select(0, slots).to(torch.float32).div_(temp.view(-1, 1, 1))
        draft.sub_(draft_lse).exp_()
        mass[:, :-1] += target.sub_(draft).clamp_(min=0.0).sum(dim=2)
    return mass


def threshold(joint: torch.Tensor, mass: torch.Tensor, num_drafts: torch.Tensor) -> torch.Tensor:
    """h: a block is accepted up to the last step whose uniform number is at most this. num_drafts [R]."""
    ratio = joint.exp()
    room = mass + 1.0 - ratio
    inner = torch.where(room > 0.0, mass / room, 1.0)
    steps = torch.arange(ratio.shape[1], device=ratio.device)
    return torch.where(steps < num_drafts.unsqueeze(1) - 1, inner, ratio)
