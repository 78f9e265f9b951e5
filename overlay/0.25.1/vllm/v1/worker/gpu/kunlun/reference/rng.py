# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 in Python integers, as published, and upstream's uniforms of a list of words."""

import torch

_WORD = 2**32


def philox(seed: int, offset: int) -> tuple[int, int, int, int]:
    """The four words of `tl.randint4x(seed, offset)`; seed and offset may be negative, and have 64 bits."""
    k0, k1 = seed % _WORD, (seed >> 32) % _WORD
    c0, c1, c2, c3 = offset % _WORD, (offset >> 32) % _WORD, 0, 0
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b % _WORD, (a >> 32) ^ c3 ^ k1, a % _WORD
        k0, k1 = (k0 + 0x9E3779B9) % _WORD, (k1 + 0xBB67AE85) % _WORD
    return c0, c1, c2, c3


def uniform32(words: list[int]) -> torch.Tensor:
    """float32: the word as a signed one, inverted where negative, scaled to [0, 1); 0 becomes the scale itself."""
    folded = [w if w < 2**31 else _WORD - 1 - w for w in words]
    return (torch.tensor(folded).to(torch.float32) * 4.6566127342e-10).clamp(min=4.6566127342e-10)


def uniform64(words: list[tuple[int, int]]) -> torch.Tensor:
    """float64 from (low, high): the 64-bit integer over 2**64; 0 becomes the smallest normal number."""
    whole = torch.tensor([float((high << 32) | low) for low, high in words], dtype=torch.float64)
    return (whole * 5.421010862427522170037e-20).clamp(min=2.2250738585072014e-308)


def gumbel_noise(seed: int, pos: int, ids: range, use_fp64: bool) -> torch.Tensor:
    """The noise of upstream's `gumbel_block_argmax` for vocabulary ids: float64 or float32 [len(ids)]."""
    key = philox(seed, pos)[0]
    words = [philox(key, i) for i in ids]
    if use_fp64:
        return -torch.log(-torch.log(uniform64([(w[0], w[1]) for w in words])))
    return -torch.log(-torch.log1p(-uniform32([w[0] for w in words])))
