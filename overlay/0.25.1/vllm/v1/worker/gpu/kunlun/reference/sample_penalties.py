# SPDX-License-Identifier: Apache-2.0
"""Sites 24 and 25, row by row."""

import torch

_BLOCK = 1024


def apply_penalties(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    token_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    repetition_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
) -> None:
    """Repetition, frequency, presence; what was drafted before a row counts as output."""
    vocab_size = logits.shape[1]
    tokens = token_ids.tolist()
    rows = zip(expanded_idx_mapping.tolist(), expanded_local_pos.tolist(), strict=True)
    for i, (request, pos) in enumerate(rows):
        if request < 0:
            continue
        repetition, frequency, presence = (
            state[request] for state in (repetition_penalty, frequency_penalty, presence_penalty)
        )
        if (float(repetition), float(frequency), float(presence)) == (1.0, 0.0, 0.0):
            continue
        counts = output_bin_counts[request, :vocab_size].clone()
        for drafted in tokens[i - pos + 1 : i + 1]:
            if 0 <= drafted < vocab_size:
                counts[drafted] += 1
        packed = prompt_bin_mask[request].tolist()
        in_prompt = torch.tensor([(packed[v // 32] >> (v % 32)) & 1 for v in range(vocab_size)], dtype=torch.bool)
        x = logits[i].to(torch.float32)
        one = torch.ones_like(x)
        scale = torch.where(in_prompt.to(x.device) | (counts > 0), repetition * one, one)
        x = x * torch.where(x > 0, 1.0 / scale, scale)
        x = x - frequency * counts
        x = x - presence * (counts > 0)
        logits[i].copy_(x)


def bincount(
    expanded_idx_mapping: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    prefill_len: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
    max_prefill_len: int,
) -> None:
    """Token by token: a bit for one of the prompt, a count for one generated before."""
    requests = expanded_idx_mapping.tolist()
    for request in requests:
        prompt_bin_mask[request] = 0
        output_bin_counts[request] = 0
    for request in requests:
        prompt_end, prefill_end = int(prompt_len[request]), int(prefill_len[request])
        packed = [word % 2**32 for word in prompt_bin_mask[request].tolist()]
        for place, token in enumerate(all_token_ids[request].tolist()):
            block = place // _BLOCK * _BLOCK
            if block >= max_prefill_len or block >= prefill_end:
                break
            if place < prompt_end:
                if 0 <= token < 32 * len(packed):
                    packed[token // 32] |= 1 << (token % 32)
            elif place < prefill_end and 0 <= token < output_bin_counts.shape[1]:
                output_bin_counts[request, token] += 1
        signed = [word - 2**32 if word >= 2**31 else word for word in packed]
        prompt_bin_mask[request] = torch.tensor(signed, dtype=torch.int32)
