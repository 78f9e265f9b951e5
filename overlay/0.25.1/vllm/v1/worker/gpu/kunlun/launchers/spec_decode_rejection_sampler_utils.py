# SPDX-License-Identifier: Apache-2.0
"""Sites 32-37: verification of draft tokens, in torch.

One call replaces six kernels: statistics of every row of logits, acceptance (greedy, standard, synthetic or block), and
the draw of one more token from the residual. The uniforms are upstream's bit for bit; logsumexp, exp, log and log1p are
torch's, so a decision can differ only where both sides of its comparison agree to rounding.

Upstream's names: R requests, L rows of logits (each request's draft tokens and one more), S = num_speculative_steps,
V = the smaller of the target's and the draft's vocabulary. Nothing is copied at [L, V]: all passes over the vocabulary
go chunk by chunk. Peak of the temporaries: about 4 * ROWS_BY_COLUMNS float32 for the statistics, six int64 of
NOISE_ROWS_BY_COLUMNS for the noise (64 and 48 MiB).
"""

from collections.abc import Callable, Iterator

import torch

from ..rng import gumbel_noise, randint, uniform32

ROWS_BY_COLUMNS = 1 << 22
NOISE_ROWS_BY_COLUMNS = 1 << 20
INF = float("inf")


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

    draft_logits None: each draft was certain of its token. draft_sampled[row + 1] is the draft token judged by `row`;
    -1 is never accepted. A request's entries behind its count are of no meaning.
    """
    num_reqs = cu_num_logits.shape[0] - 1
    num_logits, target_vocab = target_logits.shape
    num_steps = num_speculative_steps
    sampled = draft_sampled.new_zeros(num_reqs, num_steps + 1, dtype=torch.int64)
    if num_reqs == 0:
        return sampled, sampled.new_zeros(num_reqs, dtype=torch.int32)
    # The draft's vocabulary can be the smaller one, by padding (MiMo v2.5 Pro with dflash).
    vocab = target_vocab if draft_logits is None else min(target_vocab, draft_logits.shape[-1])

    # Everything per draft token is [R, S]; a request with fewer drafts than S has meaningless entries at its end.
    starts = cu_num_logits[:-1].to(torch.int64)
    num_drafts = cu_num_logits[1:] - starts - 1
    steps = torch.arange(num_steps, device=target_logits.device)
    is_draft = steps < num_drafts.unsqueeze(1)
    rows = (starts.unsqueeze(1) + steps).clamp_(max=num_logits - 1)
    slots = idx_mapping.clamp(min=0)
    seeds = seed.index_select(0, slots).unsqueeze(1)
    greedy = temperature.index_select(0, slots) == 0.0
    draft = draft_sampled[(rows + 1).clamp_(max=num_logits - 1)].to(torch.int64)
    is_token = draft >= 0
    uniform = uniform32(seeds, pos[rows])

    argmax, target_lse = _target_statistics(target_logits, vocab)
    target_logp = target_logits[rows, draft.clamp(0, target_vocab - 1)].to(torch.float32) - target_lse[rows]
    draft_lse: torch.Tensor | None = None
    if draft_logits is None:
        draft_logp = torch.zeros_like(target_logp)
    else:
        draft_logits = draft_logits[:, :num_steps, :vocab]
        draft_lse = _draft_logsumexp(draft_logits, slots)
        chosen = draft_logits[slots.unsqueeze(1), steps, draft.clamp(0, vocab - 1)]
        draft_logp = chosen.to(torch.float32) - draft_lse

    if synthetic_conditional_rates is not None:
        accepted = greedy_accepted = (uniform < synthetic_conditional_rates[:num_steps]) & is_token
    else:
        accepted = (target_logp > uniform.log() + draft_logp) & is_token
        greedy_accepted = argmax[rows] == draft
    accepted = torch.where(greedy.unsqueeze(1), greedy_accepted, accepted) & is_draft
    # The first that is not accepted; S where all are.
    count = torch.where(accepted, num_steps, steps).amin(dim=1)

    log_ratio: torch.Tensor | None = None
    if use_block_verification:
        assert synthetic_conditional_rates is None, (
            "Block verification is incompatible with synthetic acceptance rates."
        )
        log_ratio = _joint_log_ratio((target_logp - draft_logp).masked_fill_(~is_token, -INF))
        if draft_logits is None or draft_lse is None:
            # The draft's distribution is a point: in closed form.
            mass = log_ratio.exp() * (1.0 - target_logp.masked_fill(~is_token, -INF).exp().roll(-1, dims=1))
        else:
            mass = _residual_mass(target_logits, draft_logits, rows, slots, target_lse, draft_lse, log_ratio)
        passed = (uniform <= _block_threshold(log_ratio, mass, num_drafts)) & is_draft
        count = torch.where(greedy, count, torch.where(passed, steps + 1, 0).amax(dim=1))

    # The row behind the last accepted token: the rejected one, or the bonus token.
    last = starts + count
    at_count = count.clamp(max=num_steps - 1).unsqueeze(1)
    bonus = (count == num_drafts).unsqueeze(1)
    key = randint(seeds, pos.index_select(0, last).unsqueeze(1))
    if draft_logits is None or draft_lse is None:
        residual = _without(target_logits, last, draft.gather(1, at_count).masked_fill_(bonus, -1))
    else:
        shift = -target_lse.index_select(0, last).unsqueeze(1)
        if log_ratio is not None:
            before = log_ratio.gather(1, (count.unsqueeze(1) - 1).clamp_(min=0))
            shift = shift, before.masked_fill_(count.unsqueeze(1) == 0, 0.0)
        residual = _difference(
            target_logits, draft_logits, last, slots, at_count, bonus, shift, draft_lse.gather(1, at_count)
        )
    resampled = _gumbel_argmax(residual, key, num_reqs, vocab, use_fp64)
    final = torch.where(greedy, argmax.index_select(0, last), resampled)
    sampled[:, :num_steps].copy_(draft.clamp_(min=0))
    sampled.scatter_(1, count.unsqueeze(1), final.unsqueeze(1))
    return sampled, (count + 1).to(torch.int32)


Columns = Callable[[int, int], torch.Tensor]


def _chunks(rows: int, vocab: int, rows_by_columns: int) -> Iterator[tuple[int, int]]:
    width = max(1024, rows_by_columns // max(rows, 1))
    for first in range(0, vocab, width):
        yield first, min(first + width, vocab)


def _first_where(equal: torch.Tensor, first: int, vocab: int) -> torch.Tensor:
    """Lowest vocabulary id whose column is True in each row, `vocab` where none is. argmax promises no order of ties."""
    ids = torch.arange(first, first + equal.shape[1], dtype=torch.int32, device=equal.device)
    return torch.where(equal, ids, vocab).amin(dim=1).to(torch.int64)


def _combine(maxima: list[torch.Tensor], sums: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row maximum and logsumexp from those of the chunks. A row without a finite logit has NaN, as upstream's."""
    if len(maxima) == 1:
        return maxima[0], maxima[0] + sums[0].log()
    maximum, total = torch.stack(maxima), torch.stack(sums)
    top = maximum.amax(dim=0)
    return top, top + (total * (maximum - top).exp()).sum(dim=0).log()


def _exp_sum(part: torch.Tensor, maximum: torch.Tensor, several: bool) -> torch.Tensor:
    total = (part - maximum.unsqueeze(-1)).exp_().sum(dim=-1)
    # -inf - -inf is NaN; a chunk of -inf must not spoil a row that has finite logits elsewhere.
    return total.masked_fill_(maximum == -INF, 0.0) if several else total


def _target_statistics(target_logits: torch.Tensor, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """First index of each row's maximum (int64 [L]) and logsumexp (float32 [L]) over the first `vocab` columns."""
    chunks = list(_chunks(target_logits.shape[0], vocab, ROWS_BY_COLUMNS))
    maxima, sums, firsts = [], [], []
    for first, last in chunks:
        part = target_logits[:, first:last].to(torch.float32)
        maxima.append(part.amax(dim=1))
        firsts.append(_first_where(part == maxima[-1].unsqueeze(1), first, vocab))
        sums.append(_exp_sum(part, maxima[-1], len(chunks) > 1))
    top, lse = _combine(maxima, sums)
    argmax = firsts[0]
    if len(chunks) > 1:
        argmax = torch.where(torch.stack(maxima) == top, torch.stack(firsts), vocab).amin(dim=0)
    # A NaN equals nothing; whatever the token, it must lie in the vocabulary.
    return argmax.clamp_(max=vocab - 1), lse


def _draft_logsumexp(draft_logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Logsumexp of the draft's logits, float32 [R, S]."""
    vocab = draft_logits.shape[2]
    chunks = list(_chunks(slots.shape[0] * draft_logits.shape[1], vocab, ROWS_BY_COLUMNS))
    maxima, sums = [], []
    for first, last in chunks:
        part = draft_logits[:, :, first:last].index_select(0, slots).to(torch.float32)
        maxima.append(part.amax(dim=2))
        sums.append(_exp_sum(part, maxima[-1], len(chunks) > 1))
    return _combine(maxima, sums)[1]


def _joint_log_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """Running log of min(p/q so far, 1): block verification's p_i, [R, S]. Upstream's order of rounding, step by step."""
    running = log_ratio.new_zeros(log_ratio.shape[0])
    columns = []
    for step in range(log_ratio.shape[1]):
        running = (running + log_ratio[:, step]).clamp_(max=0.0)
        columns.append(running)
    return torch.stack(columns, dim=1)


def _residual_mass(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    target_lse: torch.Tensor,
    draft_lse: torch.Tensor,
    log_ratio: torch.Tensor,
) -> torch.Tensor:
    """sum(max(p_i * target - draft, 0)) over the vocabulary at the position behind each step, [R, S]; last column 0."""
    num_reqs, num_steps, vocab = slots.shape[0], draft_logits.shape[1], draft_logits.shape[2]
    mass = torch.zeros_like(log_ratio)
    if num_steps == 1:
        return mass
    behind = rows[:, 1:].reshape(-1)
    ratio = log_ratio[:, :-1].exp().unsqueeze(2)
    target_lse = target_lse[behind].unsqueeze(1)
    draft_lse = draft_lse[:, 1:].unsqueeze(2)
    for first, last in _chunks(behind.shape[0], vocab, ROWS_BY_COLUMNS):
        target = target_logits[:, first:last].index_select(0, behind).to(torch.float32).sub_(target_lse).exp_()
        target = target.view(num_reqs, num_steps - 1, -1).mul_(ratio)
        draft = draft_logits[:, 1:, first:last].index_select(0, slots).to(torch.float32)
        mass[:, :-1] += target.sub_(draft.sub_(draft_lse).exp_()).clamp_(min=0.0).sum(dim=2)
    return mass


def _block_threshold(log_ratio: torch.Tensor, mass: torch.Tensor, num_drafts: torch.Tensor) -> torch.Tensor:
    """h of block verification, [R, S]: the last draft's is its joint ratio."""
    ratio = log_ratio.exp()
    room = mass + 1.0 - ratio
    threshold = torch.where(room > 0.0, mass / room, 1.0)
    steps = torch.arange(ratio.shape[1], device=ratio.device)
    return torch.where(steps < num_drafts.unsqueeze(1) - 1, threshold, ratio)


def _without(target_logits: torch.Tensor, last: torch.Tensor, rejected: torch.Tensor) -> Columns:
    """The residual of a draft that was certain: the target less the rejected token ([R, 1]; -1 removes none)."""

    def columns(first: int, end: int) -> torch.Tensor:
        ids = torch.arange(first, end, device=last.device)
        target = target_logits[:, first:end].index_select(0, last).to(torch.float32)
        return target.masked_fill_(ids == rejected, -INF)

    return columns


def _difference(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    last: torch.Tensor,
    slots: torch.Tensor,
    at_count: torch.Tensor,
    bonus: torch.Tensor,
    shift: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    draft_lse: torch.Tensor,
) -> Columns:
    """log(max(target - draft, 0)) in probabilities, each shifted to its own; the target itself for a bonus token."""
    steps = at_count.squeeze(1)
    shifts = shift if isinstance(shift, tuple) else (shift,)

    def columns(first: int, end: int) -> torch.Tensor:
        target = target_logits[:, first:end].index_select(0, last).to(torch.float32)
        target_logp = target
        for term in shifts:
            target_logp = target_logp + term
        draft_logp = draft_logits[:, :, first:end][slots, steps].to(torch.float32) - draft_lse
        # log(exp(a) - exp(b)) = a + log1p(-exp(b - a)), upstream's stable form.
        ratio = draft_logp.sub_(target_logp).exp_()
        residual = torch.where(ratio < 1.0, target_logp + torch.log1p(-ratio), -INF)
        return torch.where(bonus, target, residual)

    return columns


def _gumbel_argmax(columns: Columns, key: torch.Tensor, rows: int, vocab: int, use_fp64: bool) -> torch.Tensor:
    """Lowest id of the largest logit plus noise, int64 [rows]; key [rows, 1]. 0 for a row of -inf."""
    best: torch.Tensor | None = None
    token = torch.zeros(rows, dtype=torch.int64, device=key.device)
    for first, last in _chunks(rows, vocab, NOISE_ROWS_BY_COLUMNS):
        ids = torch.arange(first, last, device=key.device)
        noisy = gumbel_noise(key, ids, use_fp64).add_(columns(first, last))
        # NaN never wins in upstream's kernel.
        noisy.nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)
        top = noisy.amax(dim=1)
        found = _first_where(noisy == top.unsqueeze(1), first, vocab)
        if best is None:
            best, token = top, found
        else:
            token = torch.where(top > best, found, token)
            best = torch.maximum(best, top)
    return token
