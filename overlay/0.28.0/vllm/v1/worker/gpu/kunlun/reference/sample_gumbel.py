# SPDX-License-Identifier: Apache-2.0
"""Sites 17 and 18, row by row."""

import torch

from .rng import gumbel_noise

_BLOCK = 1024


def apply_temperature(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
) -> None:
    """Divide each row by its request's temperature unless that is 0 or 1, or there is no request."""
    for row, request in zip(logits, expanded_idx_mapping.tolist(), strict=True):
        if request < 0:
            continue
        temp = temperature[request].to(torch.float32)
        if float(temp) not in (0.0, 1.0):
            row.copy_(row.to(torch.float32) / temp)


def gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
) -> torch.Tensor:
    """One token a row: the highest logit, after temperature and noise unless the row is greedy."""
    num_tokens, vocab_size = logits.shape
    sampled = torch.empty(num_tokens, dtype=torch.int64, device=logits.device)
    for i, request in enumerate(expanded_idx_mapping.tolist()):
        x = logits[i].to("cpu", torch.float32)
        temp = temperature[request].to("cpu", torch.float32) if request >= 0 else torch.tensor(0.0)
        random = float(temp) != 0.0
        if logits_cache is not None and request >= 0:
            assert logits_cache_col is not None
            column = int(logits_cache_col[i] if logits_cache_col.dim() > 0 else logits_cache_col)
            start = request * logits_cache.stride(0) + column * vocab_size
            out = logits_cache
            out.as_strided((vocab_size,), (1,), out.storage_offset() + start).copy_(x)
        if random and apply_temperature:
            x = x / temp
        if use_fp64:
            x = x.to(torch.float64)
        if random:
            x = x + gumbel_noise(int(seed[request]), int(pos[i]), range(vocab_size), use_fp64)
        sampled[i] = _first_largest(x)
    return sampled


def gumbel_sample_greedy(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
) -> torch.Tensor:
    """The general form: where all rows are greedy it gives the same."""
    return gumbel_sample(
        logits,
        expanded_idx_mapping,
        temperature,
        seed,
        pos,
        apply_temperature,
        logits_cache,
        logits_cache_col,
        use_fp64,
    )


def _first_largest(x: torch.Tensor) -> int:
    """Best of the blocks' first best, NaN aside: 0 where all are -inf."""
    best, token = float("-inf"), 0
    for start in range(0, len(x), _BLOCK):
        for i, value in enumerate(x[start : start + _BLOCK].tolist(), start):
            if value > best:
                best, token = value, i
    return token
