# SPDX-License-Identifier: Apache-2.0
"""Sites 32-37, request by request and draft by draft."""

import math

import torch

from .rng import gumbel_noise, philox, uniform32


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
    """Judge each request's drafts in turn, then draw one more token behind the last accepted one."""
    if use_block_verification:
        assert synthetic_conditional_rates is None, (
            "Block verification is incompatible with synthetic acceptance rates."
        )
    num_reqs = cu_num_logits.shape[0] - 1
    vocab = target_logits.shape[1]
    if draft_logits is not None:
        vocab = min(vocab, draft_logits.shape[-1])
    sampled = draft_sampled.new_zeros(num_reqs, num_speculative_steps + 1, dtype=torch.int64)
    num_sampled = sampled.new_zeros(num_reqs, dtype=torch.int32)
    rates = None if synthetic_conditional_rates is None else synthetic_conditional_rates.cpu()
    for request in range(num_reqs):
        slot = max(int(idx_mapping[request]), 0)
        start, end = int(cu_num_logits[request]), int(cu_num_logits[request + 1])
        drafts = draft_sampled[start + 1 : end].tolist()
        positions, key = pos[start:end].tolist(), int(seed[slot])
        uniforms = [uniform32([philox(key, position)[0]])[0] for position in positions]
        # Logits as float32, and where there is one the draft's distribution for the same position.
        full = list(target_logits[start:end].float().cpu())
        target = [row[:vocab] for row in full]
        proposal = None
        if draft_logits is not None:
            # Logits from before temperature, which a greedy request has none of.
            heat = temperature[slot].float().cpu()
            proposal = list(draft_logits[slot, : len(drafts), :vocab].float().cpu() / (heat if heat != 0.0 else 1.0))
        log_p = [_log_prob(full[i], target[i], token) for i, token in enumerate(drafts)]
        log_q = [
            torch.zeros(()) if proposal is None or token < 0 else _log_prob(proposal[i], proposal[i], token)
            for i, token in enumerate(drafts)
        ]

        count = 0
        if float(temperature[slot]) == 0.0:
            for step, token in enumerate(drafts):
                if rates is not None:
                    ok = token >= 0 and bool(uniforms[step] < rates[step])
                else:
                    ok = token == _argmax(target[step])
                if not ok:
                    break
                count += 1
            final = _argmax(target[count])
        else:
            log_ratio: list[torch.Tensor] = []
            if use_block_verification:
                log_ratio = _joint_log_ratio(log_p, log_q)
                mass = _residual_masses(log_ratio, target, proposal, log_p)
                # -1 ends the block.
                length = drafts.index(-1) if -1 in drafts else len(drafts)
                for step in range(length):
                    ratio = log_ratio[step].exp()
                    threshold = ratio
                    if step < length - 1:
                        room = mass[step] + 1.0 - ratio
                        threshold = mass[step] / room if bool(room > 0.0) else torch.ones(())
                    if bool(uniforms[step] <= threshold):
                        count = step + 1
            else:
                for step, token in enumerate(drafts):
                    if rates is not None:
                        ok = bool(uniforms[step] < rates[step])
                    else:
                        ok = bool(log_p[step] > uniforms[step].log() + log_q[step])
                    if not ok or token < 0:
                        break
                    count += 1

            residual = target[count].clone()
            # Without a token to reject, the target itself.
            if count < len(drafts) and drafts[count] >= 0:
                if proposal is None:
                    if drafts[count] < vocab:
                        residual[drafts[count]] = -math.inf
                else:
                    wanted = target[count] - _logsumexp(target[count])
                    if use_block_verification and count > 0:
                        wanted = wanted + log_ratio[count - 1]
                    offered = proposal[count] - _logsumexp(proposal[count])
                    ratio = (offered - wanted).exp()
                    residual = torch.where(ratio < 1.0, wanted + torch.log1p(-ratio), -math.inf)
            noise = gumbel_noise(key, positions[count], range(vocab), use_fp64)
            final = _argmax(residual.to(noise.dtype) + noise)

        for step in range(count):
            sampled[request, step] = drafts[step]
        sampled[request, count] = final
        num_sampled[request] = count + 1
    return sampled, num_sampled


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
    """The general form: where all requests are greedy it gives the same."""
    return rejection_sample(
        target_logits,
        draft_logits,
        draft_sampled,
        cu_num_logits,
        pos,
        idx_mapping,
        expanded_idx_mapping,
        expanded_local_pos,
        temperature,
        seed,
        num_speculative_steps,
        synthetic_conditional_rates,
        use_fp64,
        use_block_verification,
    )


def _argmax(logits: torch.Tensor) -> int:
    """Lowest index of the largest value; 0 for a row of -inf."""
    best, token = -math.inf, 0
    for index, value in enumerate(logits.tolist()):
        if value > best:
            best, token = value, index
    return token


def _logsumexp(logits: torch.Tensor) -> torch.Tensor:
    top = logits.max()
    return top + (logits - top).exp().sum().log()


def _log_prob(row: torch.Tensor, normalised: torch.Tensor, token: int) -> torch.Tensor:
    """log softmax over `normalised` of row[token]; -inf for the token -1, which stands for no draft."""
    if token < 0:
        return torch.tensor(-math.inf)
    return row[min(token, len(row) - 1)] - _logsumexp(normalised)


def _joint_log_ratio(log_p: list[torch.Tensor], log_q: list[torch.Tensor]) -> list[torch.Tensor]:
    running, ratios = torch.zeros(()), []
    for p, q in zip(log_p, log_q):
        running = torch.clamp(running + (p - q), max=0.0)
        ratios.append(running)
    return ratios


def _residual_masses(
    log_ratio: list[torch.Tensor],
    target: list[torch.Tensor],
    proposal: list[torch.Tensor] | None,
    log_p: list[torch.Tensor],
) -> list[torch.Tensor]:
    """For each draft but the last: the mass left to the target at the position behind it."""
    masses = []
    for step in range(len(log_ratio) - 1):
        ratio = log_ratio[step].exp()
        if proposal is None:
            masses.append(ratio * (1.0 - log_p[step + 1].exp()))
            continue
        wanted = (target[step + 1] - _logsumexp(target[step + 1])).exp()
        offered = (proposal[step + 1] - _logsumexp(proposal[step + 1])).exp()
        masses.append((ratio * wanted - offered).clamp(min=0.0).sum())
    return masses
