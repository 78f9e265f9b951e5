# SPDX-License-Identifier: Apache-2.0
"""Sites 17 and 18: temperature, and sampling by Gumbel noise.

Memory: local maxima of the pieces, and for one piece of at most 2**20 elements (2**16 on a CPU; one block of 1024
columns at least) eight int64 or their equal: 64 MiB. Nothing has the size of the logits.
"""

from collections.abc import Callable

import numpy as np
import torch

from .. import rng
from ..vocab import pieces, rng_elements


def apply_temperature(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
) -> None:
    """Divide each row by its request's temperature, in place, except where that is 0 or 1.

    logits [num_tokens, vocab_size], any float type; expanded_idx_mapping [num_tokens], request of a row;
    temperature [max_num_reqs]. A row of no request (negative) is left alone; upstream reads out of bounds there.
    """
    rows = expanded_idx_mapping.clamp(min=0)
    temp = temperature.index_select(0, rows).to(torch.float32)
    # x / 1 is x, bit for bit.
    divisor = temp.masked_fill_((temp == 0.0) | (expanded_idx_mapping < 0), 1.0)
    logits.div_(divisor.unsqueeze(1))


def gumbel_sample(
    logits: torch.Tensor,  # [num_tokens, vocab_size]
    expanded_idx_mapping: torch.Tensor,  # [num_tokens]
    temperature: torch.Tensor,  # [max_num_reqs]
    seed: torch.Tensor,  # [max_num_reqs]
    pos: torch.Tensor,  # [num_tokens]
    apply_temperature: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
) -> torch.Tensor:
    """Sample one token a row; int64 [num_tokens].

    A row whose request has temperature 0, or that has no request (negative), is greedy. The noise of any other row
    depends on its request's seed, its position and the vocabulary id alone. Of equal values the lowest id wins, as
    `torch.max` and `torch.argmax` document it; NaN counts as -inf; a row of -inf gives 0.

    logits_cache [max_num_reqs, ...]: row of the request, column `logits_cache_col` (a scalar tensor, or one a row) of
    vocab_size elements, gets the logits before temperature; rows without a request write nothing.
    """
    valid = expanded_idx_mapping >= 0
    rows = expanded_idx_mapping.clamp(min=0)
    temp = temperature.index_select(0, rows).to(torch.float32).mul_(valid).unsqueeze_(1)
    greedy = temp == 0.0
    divisor = temp.masked_fill(greedy, 1.0) if apply_temperature else None
    key = rng.randint(seed.index_select(0, rows), pos).unsqueeze_(1)

    def noisy(x: torch.Tensor, piece: slice) -> torch.Tensor:
        ids = torch.arange(piece.start, piece.stop, dtype=torch.int64, device=x.device).unsqueeze_(0)
        noise = rng.gumbel_noise(key, ids, use_fp64)
        return noise.masked_fill_(greedy, 0.0).add_(x)

    store = _store(logits, expanded_idx_mapping, logits_cache, logits_cache_col)
    return _sample(logits, rng_elements(logits.device), divisor, store, noisy)


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
    """`gumbel_sample` where every row is known to be greedy (see `all_rows_greedy`): same result, no random numbers."""
    store = _store(logits, expanded_idx_mapping, logits_cache, logits_cache_col)
    return _sample(logits, None, None, store, None)


def all_rows_greedy(temperature: np.ndarray, idx_mapping: np.ndarray) -> bool:
    """Whether no row draws random numbers, from the host's copies alone.

    temperature [max_num_reqs]; idx_mapping: requests of the batch, where a negative one is greedy by definition (and
    would read another request's temperature from behind).
    """
    return not temperature[idx_mapping[idx_mapping >= 0]].any()


Store = Callable[[torch.Tensor, slice], None]
Noisy = Callable[[torch.Tensor, slice], torch.Tensor]


def _sample(
    logits: torch.Tensor, elements: int | None, divisor: torch.Tensor | None, store: Store | None, noisy: Noisy | None
) -> torch.Tensor:
    num_tokens, vocab_size = logits.shape
    if num_tokens == 0:
        return logits.new_empty(0, dtype=torch.int64)
    maxima: list[torch.Tensor] = []
    tokens: list[torch.Tensor] = []
    for piece in pieces(num_tokens, vocab_size, elements):
        x = logits[:, piece]
        if divisor is not None or store is not None or noisy is not None:
            x = x.to(torch.float32)
        if store is not None:
            store(x, piece)
        if divisor is not None:
            x = x / divisor
        if noisy is not None:
            x = noisy(x, piece)
        value, index = x.nan_to_num(float("-inf"), float("inf"), float("-inf")).max(-1)
        maxima.append(value)
        tokens.append(index + piece.start if piece.start else index)
    if len(tokens) == 1:
        return tokens[0]
    best = torch.stack(maxima, -1).argmax(-1, keepdim=True)
    return torch.stack(tokens, -1).gather(-1, best).view(-1)


def _store(
    logits: torch.Tensor, idx_mapping: torch.Tensor, out: torch.Tensor | None, col: torch.Tensor | None
) -> Store | None:
    """A function that writes a piece of the logits, or None where nobody wants them."""
    num_tokens, vocab_size = logits.shape
    if out is None or num_tokens == 0:
        return None
    # Upstream's address is request * stride(0) + column * vocab_size + id, whatever the shape.
    row_span = 1 + sum((n - 1) * s for n, s in zip(out.shape[1:], out.stride()[1:], strict=True))
    columns = row_span // vocab_size
    window = out.as_strided((out.shape[0], columns, vocab_size), (out.stride(0), vocab_size, 1))
    valid = idx_mapping >= 0
    # A row without a request repeats the write of the first row that has one, value and place. Where none has, all
    # write back what stands in one place.
    any_valid = valid.any()
    rows = torch.arange(num_tokens, device=out.device)
    source = torch.where(valid, rows, valid.to(torch.uint8).argmax())
    request = idx_mapping.clamp(min=0).to(torch.int64)[source]
    assert col is not None
    per_row = col[:num_tokens] if col.dim() else col.expand(num_tokens)
    column = per_row.to(torch.int64)[source].clamp_(0, columns - 1)

    def store(x: torch.Tensor, piece: slice) -> None:
        target = window[:, :, piece]
        values = torch.where(any_valid, x.index_select(0, source).to(out.dtype), target[request, column])
        target.index_put_((request, column), values)

    return store
