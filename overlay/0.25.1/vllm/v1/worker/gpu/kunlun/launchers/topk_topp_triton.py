# SPDX-License-Identifier: Apache-2.0
"""Site 39: top-k and top-p masks.

Upstream's kernel searches a pivot and keeps what lies above it. It is not the textbook mask, and this is the kernel's:

- top-k keeps exactly k tokens; of equal ones at the boundary the lowest ids. (Upstream's torch path keeps them all.)
- top-p keeps the smallest set of the most probable tokens with mass >= p, but the search halves the range of
  probabilities at most 18 times: where probabilities lie closer than 2**-18 of the range it stops in between, and
  keeps what is above the middle of the last interval. With a flat tail that is hundreds of tokens more or less.
- the search for top-p starts at the least probable token: whether that one stays when p needs it, rounding decides.
- of equal tokens at the boundary of top-p it drops the superfluous ones, highest ids first, only where
  log(exp(x)) comes back to x exactly; else it keeps them all.
- it leaves a row alone whose pivot is not below the maximum (all finite logits equal), and with top-k a row with at
  most k finite logits.

The search decides by comparing pivots with the values around the boundary, so with the row sorted its steps have a
closed form, and no step needs the device's answer. Same mask as the kernel, up to rounding: exp, log and the order of
the sums are torch's, and so is a pivot's last bit. Rows that hold NaN are left alone.
"""

import functools
from typing import NamedTuple

import torch

from ..vocab import row_pieces

_STEPS = 18  # of either search
_CLOSE = 1e-9  # equal, to the kernel
# Sorting a piece takes about 40 bytes an element.
_PIECE = 3 << 19
# The kernel's first tile, from which it guesses where to start.
_TILE = {"cpu": 256, "xpu": 4096}
_INF = float("inf")


def apply_top_k_top_p_triton(
    logits: torch.Tensor,
    k: torch.Tensor | None,
    p: torch.Tensor | None,
    mask_value: float = float("-inf"),
) -> torch.Tensor:
    """Mask all but the top k tokens of each row, then all but the most probable ones with mass p; in place.

    logits float32 [batch_size, vocab_size]; k int [batch_size], vocab_size or more turns it off; p float
    [batch_size], 1 or more turns it off. Returns logits, or a masked copy where the vocabulary is not contiguous.
    Memory: about 40 bytes an element of a piece of 3 * 2**19 elements (one row at least).
    """
    assert logits.ndim == 2
    assert logits.dtype == torch.float32
    batch_size, vocab_size = logits.shape
    if batch_size == 0 or (k is None and p is None):
        return logits
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    if k is not None:
        assert k.ndim == 1 and k.shape[0] == batch_size
        k = k.to(torch.int32).unsqueeze(1)
    if p is not None:
        assert p.ndim == 1 and p.shape[0] == batch_size
        p = p.to(torch.float32).unsqueeze(1)
    for piece in row_pieces(batch_size, vocab_size, _PIECE):
        _mask(logits[piece], None if k is None else k[piece], None if p is None else p[piece], mask_value)
    return logits


class _Ending(NamedTuple):
    """Where a search ended, [rows, 1] each: tokens above `pivot` stay, but of the equals of `value` the first `keep`.

    equal: how many equals of `value`, the smallest above the pivot, the kernel counted. A pivot of -inf masks nothing.
    """

    pivot: torch.Tensor
    value: torch.Tensor
    equal: torch.Tensor
    keep: torch.Tensor

    def drops(self) -> torch.Tensor:
        # The kernel's count is unsigned: a negative one is huge there, and drops nothing.
        return (self.keep >= 0) & (self.keep < self.equal)

    def where(self, mine: torch.Tensor, other: "_Ending") -> "_Ending":
        return _Ending(*(torch.where(mine, a, b) for a, b in zip(self, other, strict=True)))


def _mask(x: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, mask_value: float) -> None:
    """One piece, in place."""
    vocab_size = x.shape[1]
    ordered = x.sort(dim=-1, descending=True).values
    largest = ordered[:, :1]
    num_finite = (ordered > -_INF).sum(-1, keepdim=True)
    smallest = ordered.gather(1, (num_finite - 1).clamp_(min=0))
    mean, std = _first_tile(x)
    none = torch.full_like(mean, -_INF)
    ending = _Ending(none, none, torch.zeros_like(num_finite), torch.zeros_like(num_finite))
    measure = _Measure(mean + std * 10.0, smallest, torch.full_like(num_finite, vocab_size))
    in_top_k = torch.zeros_like(num_finite, dtype=torch.bool)
    if k is not None:
        in_top_k = (k < vocab_size) & (num_finite > k)
        guess = _guess(mean, std, k / vocab_size, 0.15, _percentile_table(x.device))
        guessed = (ordered > guess).sum(-1, keepdim=True) > k
        found, above = _top_k(ordered, k, torch.where(guessed, guess, smallest), largest)
        ending = found.where(in_top_k, ending)
        # Top-p among the top k measures from the maximum and starts at the pivot. Its sum is over what top-k keeps;
        # its buffer, if the guess was good, also holds the equals that top-k drops.
        kept = torch.where(found.drops(), above - found.equal + found.keep, above)
        among = _Measure(largest, found.pivot, kept)
        measure = _Measure(*(torch.where(in_top_k, a, b) for a, b in zip(among, measure, strict=True)))
        buffered = torch.where(in_top_k & guessed, above, measure.count)
    else:
        buffered = measure.count
    if p is not None:
        guess = _guess(mean, std, p, 0.25, _sigma_table(x.device)).masked_fill_(in_top_k, _INF)
        ending = _top_p(ordered, p, measure, buffered, guess, largest).where(p < 1.0, ending)
    keep = x > ending.pivot
    equal = (x - ending.value).abs_() < _CLOSE
    keep &= ~(equal & (equal.cumsum(-1, dtype=torch.int32) > ending.keep) & ending.drops())
    keep |= ~((ending.pivot < largest) & (ending.pivot > -_INF))
    x.masked_fill_(~keep, mask_value)


class _Measure(NamedTuple):
    """What top-p works on: probabilities exp(x - reference) over the `count` best, searched from logit `low` up."""

    reference: torch.Tensor
    low: torch.Tensor
    count: torch.Tensor


def _first_tile(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of the finite logits of the kernel's first tile."""
    tile = x[:, : _TILE.get(x.device.type, 8192)]
    finite = tile > -_INF
    count = finite.sum(-1, keepdim=True).clamp_(min=1)
    tile = tile.masked_fill(~finite, 0.0)
    mean = tile.sum(-1, keepdim=True) / count
    square = (tile * tile).sum(-1, keepdim=True) / count
    return mean, (square - mean * mean).clamp_(min=0.0).sqrt_()


def _guess(
    mean: torch.Tensor, std: torch.Tensor, share: torch.Tensor, slack: float, table: torch.Tensor
) -> torch.Tensor:
    """The logit above which the kernel expects the boundary."""
    sigma = table[(share * 200).to(torch.int64).clamp_(0, 199)]
    return mean + std * (sigma - sigma.abs() * slack)


def _top_k(
    ordered: torch.Tensor, k: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[_Ending, torch.Tensor]:
    """Search for the pivot that k logits lie above; and how many do in the end."""
    target = ordered.gather(1, (k.to(torch.int64) - 1).clamp_(0, ordered.shape[1] - 1))
    below = torch.where(target - ordered >= _CLOSE, ordered, -_INF).amax(-1, keepdim=True)
    found, pivot, _ = _search(low, high, target, below, 3)
    above, value, equal = _above(ordered, pivot)
    # A search that ends in between has lost its count, and drops nothing.
    return _Ending(pivot, value, equal, torch.where(found, equal - (above - k), equal)), above


def _top_p(
    ordered: torch.Tensor,
    p: torch.Tensor,
    measure: _Measure,
    buffered: torch.Tensor,
    guess: torch.Tensor,
    largest: torch.Tensor,
) -> _Ending:
    """Search for the pivot that probabilities with mass p lie above, among the `buffered` best."""
    reference, low_logit, count = measure
    rank = torch.arange(ordered.shape[1], device=ordered.device)
    weight = (ordered - reference).exp_()
    total = torch.where(rank < count, weight, 0.0).sum(-1, keepdim=True)
    prob = torch.where(rank < buffered, weight.div_(total), 0.0)

    def prob_of(logit: torch.Tensor) -> torch.Tensor:
        return (logit - reference).exp_().div_(total)

    low, guessed = prob_of(low_logit), prob_of(guess)
    low = torch.where(torch.where(prob > guessed, prob, 0.0).sum(-1, keepdim=True) > p, guessed, low)
    mass = prob.cumsum(-1)
    place = (mass < p).sum(-1, keepdim=True)
    target = prob.gather(1, place.clamp(max=prob.shape[1] - 1))
    # Mass that rounding keeps below p: no pivot is low enough.
    target = torch.where(place < buffered, target, low)
    below = torch.where(target - prob >= _CLOSE, prob, 0.0).amax(-1, keepdim=True)
    _, pivot, tried = _search(low, prob_of(largest), target, below, 2)
    above, value, equal = _above(prob, tried)
    above_mass = mass.gather(1, (above - 1).clamp_(min=0)).masked_fill_(above == 0, 0.0)
    value = value.masked_fill(above == 0, 1.0)
    surplus = ((above_mass - p) / value).clamp_(min=0.0).to(torch.int64)
    return _Ending(
        (pivot * total).log_().add_(reference), (value * total).log_().add_(reference), equal, equal - surplus
    )


def _search(
    low: torch.Tensor, high: torch.Tensor, target: torch.Tensor, below: torch.Tensor, parts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(found, pivot, last pivot tried) of the kernel's search, which cuts its range into `parts` at each step.

    It goes on in the part that holds `target`, and has found its pivot when one of the cuts lies in [below, target):
    nothing but equals of the target lies between. At step 18, or when the range gets below 1e-9, it takes the middle
    instead, hit or not. The part at step n is the target's place in the range, times parts**(n - 1), rounded down.
    """
    span = high - low
    # 0 / 0, where all values are equal: the target is the lower end, as any place would do.
    place = ((target - low) / span).nan_to_num_(0.0).clamp_(0.0, 1.0)
    step = torch.arange(_STEPS + 1, device=low.device)
    cells = torch.pow(float(parts), step).unsqueeze_(0)
    cell = (place * cells).ceil_().sub_(1.0).clamp_(min=0.0)
    cut = torch.arange(1, parts, device=low.device)
    cuts = low.unsqueeze(2) + span.unsqueeze(2) * ((parts * cell).unsqueeze(2) + cut) / (parts * cells).unsqueeze(2)
    cuts = cuts[:, :_STEPS]
    steps = ((span / cells >= _CLOSE) | (step == 0))[:, :_STEPS].sum(1, keepdim=True)
    hits = (cuts >= below.unsqueeze(2)) & (cuts < target.unsqueeze(2)) & (step[:_STEPS] < steps - 1).unsqueeze(2)
    hit = hits.any(2)
    first = hit.to(torch.uint8).argmax(1, keepdim=True)
    found = hit.any(1, keepdim=True)
    # Of two cuts that would do, the upper one.
    chosen = torch.where(hits, cuts, -_INF).amax(2).gather(1, first)
    middle = low + span * (cell.gather(1, steps) + 0.5) / cells.expand_as(cell).gather(1, steps)
    tried = cuts[:, :, 0].gather(1, steps - 1)
    return found, torch.where(found, chosen, middle), torch.where(found, chosen, tried)


def _above(values: torch.Tensor, pivot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How many of the ordered values lie above the pivot, the smallest of them, and how many are as small as that."""
    over = values > pivot
    above = over.sum(-1, keepdim=True)
    value = values.gather(1, (above - 1).clamp_(min=0))
    return above, value, (over & (values - value < _CLOSE)).sum(-1, keepdim=True)


@functools.cache
def _percentile_table(device: torch.device) -> torch.Tensor:
    from vllm.v1.sample.ops import topk_topp_triton as upstream

    return torch.tensor(upstream._PERCENTILE_TO_STD_TABLE, dtype=torch.float32, device=device)


@functools.cache
def _sigma_table(device: torch.device) -> torch.Tensor:
    from vllm.v1.sample.ops import topk_topp_triton as upstream

    return torch.tensor(upstream._NORMAL_CDF_TO_SIGMA_TABLE, dtype=torch.float32, device=device)
