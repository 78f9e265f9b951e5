# SPDX-License-Identifier: Apache-2.0
"""Sites 32-37: verification of draft tokens, in torch.

One call replaces six kernels: statistics of every row of logits, acceptance (greedy, standard, synthetic or block), and
the draw of one more token from the residual. The uniforms are upstream's bit for bit; logsumexp, exp, log and log1p are
torch's, so a decision can differ only where both sides of its comparison agree to rounding.

Upstream's names: R requests, L rows of logits (each request's draft tokens and one more), S = num_speculative_steps,
V = the smaller of the target's and the draft's vocabulary. Nothing exists at [L, V]: all passes over the vocabulary go
piece by piece. The statistics' temporaries are 16 to 48 MiB, with block verification three times that; the noise's,
[R, V] by pieces, 41 MiB (five int64 and more: tests/parity/test_memory.py).
Rows of greedy requests get both although nobody reads them: the device alone knows which they are. Where the host knows
that all are, `rejection_sample_greedy` does without.
"""

from dataclasses import dataclass

import torch

from .. import block_verification
from ..rng import _uniform32, randint, uniform32
from ..verification import (
    INF,
    Columns,
    draft_logsumexp,
    gumbel_argmax,
    statistics_piece,
    target_statistics,
)


def rejection_sample(
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
    """Tokens that each request takes from its drafts, and one more: (int64 [R, S + 1], int32 [R] how many).

    draft_logits None: each draft was certain of its token; else they are from before temperature. draft_sampled[row + 1]
    is the draft token judged by `row`; -1 is no token and ends a request's drafts: what is drawn there is drawn from the
    target alone. A request's entries behind its count are of no meaning.
    """
    _check_mode(synthetic_conditional_rates, use_block_verification)
    num_reqs = cu_num_logits.shape[0] - 1
    if num_reqs == 0:
        return _nothing(draft_sampled, num_speculative_steps)
    # The draft's vocabulary can be the smaller one, by padding (MiMo v2.5 Pro with dflash).
    target_vocab = target_logits.shape[1]
    vocab = target_vocab if draft_logits is None else min(target_vocab, draft_logits.shape[-1])
    drafts = _drafts(draft_sampled, cu_num_logits, num_speculative_steps)
    slots = idx_mapping.clamp(min=0)
    seeds = seed.index_select(0, slots).unsqueeze(1)
    temp = temperature.index_select(0, slots).to(torch.float32)
    greedy = temp == 0.0
    # Nobody reads what a greedy request's draft logits are divided by.
    temp = temp.masked_fill_(greedy, 1.0)
    # One word for each row of logits: the acceptance test's uniform number, or the seed of the noise at that position.
    words = randint(seeds, pos[drafts.all_rows])
    uniform = _uniform32(words[:, :-1])

    argmax, target_lse = target_statistics(target_logits, vocab)
    target_logp = target_logits[drafts.rows, drafts.token.clamp(0, target_vocab - 1)].to(torch.float32)
    target_logp -= target_lse[drafts.rows]
    draft_lse = draft_logp = torch.zeros_like(target_logp)
    if draft_logits is not None:
        draft_logits = draft_logits[:, :num_speculative_steps, :vocab]
        draft_lse = draft_logsumexp(draft_logits, slots, temp, statistics_piece(target_logits))
        draft_logp = draft_logits[slots.unsqueeze(1), drafts.steps, drafts.token.clamp(0, vocab - 1)]
        draft_logp = draft_logp.to(torch.float32).div(temp.unsqueeze(1)) - draft_lse

    if synthetic_conditional_rates is not None:
        accepted = (uniform < synthetic_conditional_rates[:num_speculative_steps]) & drafts.is_token
    else:
        accepted = (target_logp > uniform.log() + draft_logp) & drafts.is_token
        accepted = torch.where(greedy.unsqueeze(1), argmax[drafts.rows] == drafts.token, accepted)
    count = drafts.leading(accepted)

    joint: torch.Tensor | None = None
    if use_block_verification:
        num_tokens = drafts.leading(drafts.is_token).clamp(max=drafts.num)
        joint = block_verification.joint_log_ratio((target_logp - draft_logp).masked_fill_(~drafts.is_token, 0.0))
        if draft_logits is None:
            mass = block_verification.residual_mass_certain(joint, target_logp.roll(-1, dims=1))
        else:
            mass = block_verification.residual_mass(
                target_logits,
                draft_logits,
                drafts.rows,
                slots,
                temp,
                target_lse,
                draft_lse,
                joint,
                statistics_piece(target_logits),
            )
        passed = (uniform <= block_verification.threshold(joint, mass, num_tokens)) & (
            drafts.steps < num_tokens.unsqueeze(1)
        )
        count = torch.where(greedy, count, torch.where(passed, drafts.steps + 1, 0).amax(dim=1))

    # One more token, at the row of the first rejected draft or at the bonus row.
    last = drafts.starts + count
    column = count.clamp(max=num_speculative_steps - 1).unsqueeze(1)
    rejected = drafts.token.gather(1, column).masked_fill_((count == drafts.num).unsqueeze(1), -1)
    if draft_logits is None:
        residual = _without(target_logits, last, rejected)
    else:
        accepted_log_ratio = None
        if joint is not None:
            before = joint.gather(1, (count.unsqueeze(1) - 1).clamp_(min=0))
            accepted_log_ratio = before.masked_fill_(count.unsqueeze(1) == 0, 0.0)
        residual = _difference(
            target_logits,
            draft_logits,
            last,
            slots,
            column.squeeze(1),
            rejected < 0,
            temp.unsqueeze(1),
            target_lse.index_select(0, last).unsqueeze(1),
            draft_lse.gather(1, column),
            accepted_log_ratio,
        )
    resampled = gumbel_argmax(residual, words.gather(1, count.unsqueeze(1)), vocab, use_fp64)
    return drafts.outcome(count, torch.where(greedy, argmax.index_select(0, last), resampled))


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
    """`rejection_sample` where every request is known to be greedy (`sample_gumbel.all_rows_greedy`): the same result.

    One pass over the logits. No random numbers but the acceptance tests of synthetic rates.
    """
    _check_mode(synthetic_conditional_rates, use_block_verification)
    if cu_num_logits.shape[0] == 1:
        return _nothing(draft_sampled, num_speculative_steps)
    vocab = target_logits.shape[1] if draft_logits is None else min(target_logits.shape[1], draft_logits.shape[-1])
    drafts = _drafts(draft_sampled, cu_num_logits, num_speculative_steps)
    argmax, _ = target_statistics(target_logits, vocab, with_logsumexp=False)
    if synthetic_conditional_rates is not None:
        seeds = seed.index_select(0, idx_mapping.clamp(min=0)).unsqueeze(1)
        uniform = uniform32(seeds, pos[drafts.rows])
        accepted = (uniform < synthetic_conditional_rates[:num_speculative_steps]) & drafts.is_token
    else:
        accepted = argmax[drafts.rows] == drafts.token
    count = drafts.leading(accepted)
    return drafts.outcome(count, argmax.index_select(0, drafts.starts + count))


@dataclass(frozen=True)
class _Drafts:
    """The drafts of a batch as [R, S]; a request with fewer has meaningless entries behind them.

    starts, num [R]: first row of logits, number of drafts. steps [S]. all_rows [R, S + 1]: the row that judges a draft,
    or draws the bonus token; rows: less its last column. token: the draft, int64, -1 for none.
    """

    starts: torch.Tensor
    num: torch.Tensor
    steps: torch.Tensor
    all_rows: torch.Tensor
    token: torch.Tensor

    @property
    def rows(self) -> torch.Tensor:
        return self.all_rows[:, :-1]

    @property
    def is_draft(self) -> torch.Tensor:
        return self.steps < self.num.unsqueeze(1)

    @property
    def is_token(self) -> torch.Tensor:
        return self.token >= 0

    def leading(self, accepted: torch.Tensor) -> torch.Tensor:
        """How many drafts of each request are accepted before the first that is not, int64 [R]."""
        return torch.where(accepted & self.is_draft, self.steps.shape[0], self.steps).amin(dim=1)

    def outcome(self, count: torch.Tensor, final: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The result: `count` drafts, then `final`; both [R]."""
        sampled = self.token.new_zeros(self.token.shape[0], self.token.shape[1] + 1)
        sampled[:, :-1].copy_(self.token)
        sampled.scatter_(1, count.unsqueeze(1), final.unsqueeze(1))
        return sampled, (count + 1).to(torch.int32)


def _drafts(draft_sampled: torch.Tensor, cu_num_logits: torch.Tensor, num_steps: int) -> _Drafts:
    last_row = draft_sampled.shape[0] - 1
    steps = torch.arange(num_steps + 1, device=draft_sampled.device)
    starts = cu_num_logits[:-1].to(torch.int64)
    all_rows = (starts.unsqueeze(1) + steps).clamp_(max=last_row)
    token = draft_sampled[(all_rows[:, :-1] + 1).clamp_(max=last_row)].to(torch.int64)
    return _Drafts(starts, cu_num_logits[1:] - starts - 1, steps[:-1], all_rows, token)


def _check_mode(synthetic_conditional_rates: torch.Tensor | None, use_block_verification: bool) -> None:
    assert not use_block_verification or synthetic_conditional_rates is None, (
        "Block verification is incompatible with synthetic acceptance rates."
    )


def _nothing(draft_sampled: torch.Tensor, num_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    return draft_sampled.new_empty(0, num_steps + 1, dtype=torch.int64), draft_sampled.new_empty(0, dtype=torch.int32)


def _without(target_logits: torch.Tensor, last: torch.Tensor, rejected: torch.Tensor) -> Columns:
    """The residual of a draft that was certain: the target less the rejected token ([R, 1]; -1 removes none)."""

    def columns(piece: slice) -> torch.Tensor:
        ids = torch.arange(piece.start, piece.stop, device=last.device)
        target = target_logits[:, piece].index_select(0, last).to(torch.float32)
        return target.masked_fill_(ids == rejected, -INF)

    return columns


def _difference(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    last: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    alone: torch.Tensor,
    temp: torch.Tensor,
    target_lse: torch.Tensor,
    draft_lse: torch.Tensor,
    accepted_log_ratio: torch.Tensor | None,
) -> Columns:
    """log(max(p - q, 0)) of target and draft, p scaled by the accepted block's ratio; the target's logits where `alone`.

    last, slots, steps [R] say where both distributions are; the others are [R, 1].
    """

    def columns(piece: slice) -> torch.Tensor:
        target = target_logits[:, piece].index_select(0, last).to(torch.float32)
        target_logp = target - target_lse
        if accepted_log_ratio is not None:
            target_logp += accepted_log_ratio
        draft_logp = draft_logits[:, :, piece][slots, steps].to(torch.float32).div(temp) - draft_lse
        # log(exp(a) - exp(b)) = a + log1p(-exp(b - a)), upstream's stable form.
        ratio = draft_logp.sub_(target_logp).exp_()
        residual = torch.where(ratio < 1.0, target_logp + torch.log1p(-ratio), -INF)
        return torch.where(alone, target, residual)

    return columns
