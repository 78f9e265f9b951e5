# SPDX-License-Identifier: Apache-2.0
"""Site 39, row by row: upstream's two searches step by step, tile by tile."""

import math
from typing import NamedTuple

import torch

_CLOSE = 1e-9
_STEPS = 18
_INF = float("inf")
# Tiles of the logits and of the buffer, by device type.
_TILES = {"cpu": (256, 128), "xpu": (4096, 2048)}


def apply_top_k_top_p_triton(
    logits: torch.Tensor,
    k: torch.Tensor | None,
    p: torch.Tensor | None,
    mask_value: float = float("-inf"),
) -> torch.Tensor:
    """Top-k, then top-p among what is left; in place where the vocabulary is contiguous."""
    assert logits.ndim == 2
    assert logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if logits.shape[0] == 0 or (k is None and p is None):
        return logits
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tile, short = _TILES.get(logits.device.type, (8192, 4096))
    for i, row in enumerate(logits):
        row_k = None if k is None else int(k[i])
        row_p = None if p is None else p[i].to("cpu", torch.float32)
        row.copy_(_Row(row.to("cpu", torch.float32), tile, short).masked(row_k, row_p, mask_value))
    return logits


class _Found(NamedTuple):
    pivot: torch.Tensor
    value: torch.Tensor  # smallest above the pivot
    equal: int  # how many are as small
    sum: torch.Tensor | int  # count or mass above the pivot; 0 where a top-k search gave up


def _above(tiles: list[torch.Tensor], pivot: torch.Tensor, none: float) -> tuple[int, torch.Tensor, torch.Tensor, int]:
    """Count and mass above the pivot, the smallest there, and how many are as small, tile by tile."""
    count, mass, smallest, equal = 0, torch.tensor(0.0), torch.tensor(none), 0
    for tile in tiles:
        over = tile[tile > pivot]
        count += len(over)
        mass = mass + over.sum()
        least = over.min() if len(over) else torch.tensor(none)
        here = int(((over - least).abs() < _CLOSE).sum())
        if least < smallest:
            equal = here
        elif (least - smallest).abs() < _CLOSE:
            equal += here
        smallest = torch.minimum(smallest, least)
    return count, mass, smallest, equal


class _Row:
    def __init__(self, x: torch.Tensor, tile: int, short: int) -> None:
        self.x, self.tile, self.short = x, tile, short
        self.tiles = list(x.split(tile))
        self.finite = x[x > -_INF]
        self.largest = x.max()
        self.smallest = self.finite.min() if len(self.finite) else self.largest
        # Upstream's globals of a row.
        self.pivot = torch.tensor(-_INF)
        self.value = torch.tensor(_INF)
        self.equal = self.keep = 0

    def masked(self, k: int | None, p: torch.Tensor | None, mask_value: float) -> torch.Tensor:
        sample = self.tiles[0][self.tiles[0] > -_INF]
        n = max(len(sample), 1)
        mean = sample.sum() / n
        std = torch.sqrt(torch.clamp((sample * sample).sum() / n - mean * mean, min=0.0))
        if k is not None and k < len(self.x):
            self.top_k(k, p, mean, std)
        if p is not None and float(self.pivot) == -_INF and float(p) < 1.0:
            self.top_p(p, mean, std)
        if not self.pivot < self.largest or float(self.pivot) == -_INF:
            return self.x
        keep = self.x > self.pivot
        keep &= ~self.superfluous(self.x)
        return torch.where(keep, self.x, mask_value)

    def superfluous(self, x: torch.Tensor) -> torch.Tensor:
        """Equals of the smallest kept value beyond the first `keep`."""
        same = (x - self.value).abs() < _CLOSE
        if self.keep % 2**32 >= self.equal:
            return torch.zeros_like(same)
        return same & (same.cumsum(0) > self.keep)

    def top_k(self, k: int, p: torch.Tensor | None, mean: torch.Tensor, std: torch.Tensor) -> None:
        from vllm.v1.sample.ops.topk_topp_triton import _PERCENTILE_TO_STD_TABLE as table

        sigma = torch.tensor(table[min(int(torch.tensor(float(k)) / len(self.x) * 200), 199)])
        guess = mean + std * (sigma + sigma.abs() * -0.15)
        outliers = self.x[self.x > guess]
        guessed = len(outliers) > k
        if guessed:
            found = self.search_k(list(outliers.split(self.short)), guess, k)
        else:
            found = self.search_k(self.tiles, self.smallest, k)
        self.value, self.equal = found.value, found.equal
        self.keep = found.equal - (int(found.sum) - k)
        if len(self.finite) <= k:
            return
        self.pivot = found.pivot
        if p is None or not float(p) < 1.0:
            return
        pool = outliers if guessed else self.x
        chosen = pool[(pool > found.pivot) & ~self.superfluous(pool)]
        total = torch.exp(chosen - self.largest).sum()
        buffer = outliers if guessed else chosen
        probs = torch.exp(buffer - self.largest) / total
        low = torch.exp(found.pivot - self.largest) / total
        found = self.search_p(list(probs.split(self.short)), low, torch.exp(self.largest - self.largest) / total, p)
        self.end_top_p(found, p, total, self.largest)

    def search_k(self, tiles: list[torch.Tensor], low: torch.Tensor, k: int) -> _Found:
        high = self.largest
        for step in range(1, _STEPS + 1):
            cuts = [(high - low) * part / 3.0 + low for part in (1.0, 2.0)]
            (n0, _, v0, e0), (n1, _, v1, e1) = (_above(tiles, cut, _INF) for cut in cuts)
            hit = None
            for cut, n, v, e in zip(cuts, (n0, n1), (v0, v1), (e0, e1), strict=True):
                if n >= k and n - e < k:
                    hit = _Found(cut, v, e, n)
            if n1 > k:
                low = cuts[1]
            elif n0 > k:
                low = cuts[0]
            if n0 < k:
                high = cuts[0]
            elif n1 < k:
                high = cuts[1]
            if step == _STEPS or abs(float(low - high)) < _CLOSE:
                # Upstream's own end of the loop overrides a hit of the same step, but not its count.
                return _Found((high + low) / 2.0, v0, e0, hit.sum if hit else 0)
            if hit:
                return hit
        raise AssertionError("unreachable")

    def top_p(self, p: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> None:
        from vllm.v1.sample.ops.topk_topp_triton import _NORMAL_CDF_TO_SIGMA_TABLE as table

        reference = mean + std * 10.0
        weights = torch.exp(self.x - reference)
        total = torch.stack([tile.sum() for tile in weights.split(self.tile)]).sum()
        probs = weights / total
        sigma = torch.tensor(table[max(0, min(int(p * 200), 199))])
        guess = torch.exp(mean + std * (sigma + sigma.abs() * -0.25) - reference) / total
        outliers = probs[probs > guess]
        high = torch.exp(self.largest - reference) / total
        if outliers.sum() > p:
            found = self.search_p(list(outliers.split(self.short)), guess, high, p)
        else:
            low = torch.exp(self.smallest - reference) / total
            found = self.search_p(list(probs.split(self.tile)), low, high, p)
        self.end_top_p(found, p, total, reference)

    def search_p(self, tiles: list[torch.Tensor], low: torch.Tensor, high: torch.Tensor, p: torch.Tensor) -> _Found:
        for step in range(1, _STEPS + 1):
            cut = (high - low) * 0.5 + low
            _, mass, value, equal = _above(tiles, cut, 1.0)
            hit = bool(mass >= p) and bool(mass - value * equal < p)
            if mass > p:
                low = cut
            elif mass < p:
                high = cut
            if step == _STEPS or float(high - low) < _CLOSE:
                return _Found((high + low) / 2.0, value, equal, mass)
            if hit:
                return _Found(cut, value, equal, mass)
        raise AssertionError("unreachable")

    def end_top_p(self, found: _Found, p: torch.Tensor, total: torch.Tensor, reference: torch.Tensor) -> None:
        """Back from probabilities to logits. An equal logit is one that the logarithm comes back to."""
        surplus = float((found.sum - p) / found.value)
        self.value = torch.log(found.value * total) + reference
        self.equal = found.equal
        self.keep = found.equal - (int(surplus) if math.isfinite(surplus) and surplus > 0 else 0)
        self.pivot = torch.log(found.pivot * total) + reference
