# SPDX-License-Identifier: Apache-2.0
"""Passes over the logits of a verification, piece by piece: maxima, logsumexp, and the draw of a token.

L rows of target logits, R requests, S draft steps, V vocabulary.
"""

from collections.abc import Callable

import torch

from .rng import gumbel_noise
from .vocab import pieces, rng_elements

# At 1,024 requests with 7 drafts, larger pieces took 1.9 GiB that upstream does not (an H200). Statistics keep one
# float32 an element beside float32 logits, two beside narrower ones.
STATISTICS_PIECE, MOST_STATISTICS = 1 << 22, 10 << 20
INF = float("inf")

# Logits of some columns, float32 [R, columns]; they may be overwritten.
Columns = Callable[[slice], torch.Tensor]


def statistics_piece(target_logits: torch.Tensor) -> int:
    """Elements of a piece. Many rows take larger ones: on a device the number of launches is what costs."""
    most = MOST_STATISTICS if target_logits.dtype is torch.float32 else MOST_STATISTICS // 2
    return min(max(STATISTICS_PIECE, target_logits.numel() // 16), most)


def _first_where(numbers: torch.Tensor, maximum: torch.Tensor, first: int, vocab: int) -> torch.Tensor:
    """Lowest vocabulary id where each row of `numbers` (without NaN) is its maximum [rows], int32. `numbers` is used up.

    Explicit, since not every device's argmax has an order of ties; bfloat16 logits tie all the time. In place, and in
    the type of the numbers, which holds every id below 2**24.
    """
    left = torch.arange(vocab - first, vocab - first - numbers.shape[1], -1, dtype=numbers.dtype, device=numbers.device)
    return vocab - numbers.eq_(maximum.unsqueeze(1)).mul_(left).amax(dim=1).to(torch.int32)


def _exp_sum(part: torch.Tensor, maximum: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Sum of exp(part - maximum) over the last dimension; `out` is memory of part's size, perhaps its own."""
    total = torch.sub(part, maximum.unsqueeze(-1), out=out).exp_().sum(dim=-1)
    # -inf - -inf is NaN; a piece of -inf must not spoil a row that has finite logits elsewhere.
    return total.masked_fill_(maximum == -INF, 0.0)


def _logsumexp(maxima: list[torch.Tensor], sums: list[torch.Tensor]) -> torch.Tensor:
    """Logsumexp from the pieces'. A row without a finite logit has NaN, as upstream's."""
    maximum, total = torch.stack(maxima), torch.stack(sums)
    top = maximum.amax(dim=0)
    return top + (total * (maximum - top).exp()).sum(dim=0).log()


def target_statistics(
    target_logits: torch.Tensor, vocab: int, with_logsumexp: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """First index of each row's maximum (int64 [L]) and logsumexp (float32 [L]) over the first `vocab` columns."""
    maxima, sums, firsts = [], [], []
    for piece in pieces(target_logits.shape[0], vocab, statistics_piece(target_logits)):
        part = target_logits[:, piece].to(torch.float32)
        # NaN is never the maximum in upstream's kernel, and spoils the sum.
        numbers = part.nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        maxima.append(numbers.amax(dim=1))
        firsts.append(_first_where(numbers, maxima[-1], piece.start, vocab))
        if with_logsumexp:
            sums.append(_exp_sum(part, maxima[-1], numbers))
        # Or it lives on beside the next piece's.
        del part, numbers
    argmax = firsts[0]
    if len(firsts) > 1:
        maximum = torch.stack(maxima)
        argmax = torch.where(maximum == maximum.amax(dim=0), torch.stack(firsts), vocab).amin(dim=0)
    argmax = argmax.to(torch.int64)
    return argmax, _logsumexp(maxima, sums) if with_logsumexp else maxima[0]


def draft_logsumexp(draft_logits: torch.Tensor, slots: torch.Tensor, temp: torch.Tensor, elements: int) -> torch.Tensor:
    """Logsumexp of the draft's logits over the requests' temperatures (float32 [R], not 0), float32 [R, S]."""
    maxima, sums = [], []
    divisor = temp.view(-1, 1, 1)
    for piece in pieces(slots.shape[0] * draft_logits.shape[1], draft_logits.shape[2], elements):
        part = draft_logits[:, :, piece].index_select(0, slots).to(torch.float32).div_(divisor)
        maxima.append(part.amax(dim=2))
        sums.append(_exp_sum(part, maxima[-1], part))
        del part
    return _logsumexp(maxima, sums)


def gumbel_argmax(columns: Columns, key: torch.Tensor, vocab: int, use_fp64: bool) -> torch.Tensor:
    """Lowest id of the largest logit plus noise, int64 [R]; key [R, 1]. NaN never wins; a row of -inf gives 0."""
    best: torch.Tensor | None = None
    token = key.squeeze(1)
    for piece in pieces(key.shape[0], vocab, rng_elements(key.device)):
        noisy = gumbel_noise(key, torch.arange(piece.start, piece.stop, device=key.device), use_fp64)
        noisy.add_(columns(piece)).nan_to_num_(nan=-INF, posinf=INF, neginf=-INF)
        top = noisy.amax(dim=1)
        found = _first_where(noisy, top, piece.start, vocab)
        del noisy
        if best is None:
            best, token = top, found
        else:
            token = torch.where(top > best, found, token)
            best = torch.maximum(best, top)
    return token.to(torch.int64)
