# SPDX-License-Identifier: Apache-2.0
"""Triton's random numbers in torch: Philox4x32-10 on int64 tensors, without umulhi and without uint64.

`tl.randint4x(seed, offset)` of Triton 3 is Philox4x32-10 with the key (low, high 32 bits of seed) and the counter
(low, high 32 bits of offset, 0, 0). The uniforms here equal `tl.rand` and upstream's `tl_rand32` and `tl_rand64` bit
by bit. A word is an int64 in [0, 2**32). The product of two of them wraps to 64 bits; its upper half is cut out after
an arithmetic shift, so the sign that the wrap may leave does no harm.

Everything broadcasts, and stays as small as its inputs for as long as it can: with keys [n, 1] and offsets [1, m] the
first two of the ten rounds cost n + m, not n * m. Memory: five int64 of the broadcast shape at once.
"""

from collections.abc import Sequence

import torch

Word = torch.Tensor | int

_LOW = 0xFFFFFFFF
_KEY_0, _KEY_1 = 0x9E3779B9, 0xBB67AE85
_MUL_0, _MUL_1 = 0xD2511F53, 0xCD9E8D57
# Triton's factor: the largest float32 with (2**31 - 1) * factor below 1. Also upstream's _TL_RAND_MIN.
TINY_32 = 4.6566127342e-10
_SCALE_64 = 5.421010862427522170037e-20  # 2**-64
TINY_64 = 2.2250738585072014e-308


def philox(seed: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The four words of `tl.randint4x(seed, offset)`, int64 in [0, 2**32), each of the broadcast shape.

    seed, offset: integer tensors. A 32-bit offset has no high word, negative or not; a seed is sign extended: both
    as in Triton.
    """
    words = _rounds(*_words(seed, offset), outputs=4)
    return tuple(torch.broadcast_tensors(*(_as_tensor(w, seed) for w in words)))


def randint(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """`tl.randint(seed, offset)` read as an unsigned word: int64 in [0, 2**32)."""
    return _as_tensor(_rounds(*_words(seed, offset), outputs=1)[0], seed)


def uniform32(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Upstream's `tl_rand32(seed, offset, includes_zero=False)`: float32 in [TINY_32, 1)."""
    return _uniform32(randint(seed, offset))


def uniform64(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Upstream's `tl_rand64(seed, offset, includes_zero=False)`: float64 in [TINY_64, 1]."""
    low, high = _rounds(*_words(seed, offset), outputs=2)
    return _uniform64(_as_tensor(low, seed), _as_tensor(high, seed))


def gumbel_noise(key: torch.Tensor, offset: torch.Tensor, use_fp64: bool) -> torch.Tensor:
    """The noise that upstream's `gumbel_block_argmax` adds: float64 with `use_fp64`, else float32.

    key: `randint(seed, pos)`, usually [n, 1]. offset: vocabulary ids, int64 in [0, 2**31), usually [1, m].
    Its uniform is bit-equal to upstream's; the two logarithms are torch's.
    """
    # Key and offset fit one word each: their high words are plain zeros and cost nothing.
    if use_fp64:
        low, high = _rounds((offset, 0), (key, 0), outputs=2)
        return _uniform64(_as_tensor(low, key), _as_tensor(high, key)).log_().neg_().log_().neg_()
    (word,) = _rounds((offset, 0), (key, 0), outputs=1)
    return _uniform32(_as_tensor(word, key)).neg_().log1p_().neg_().log_().neg_()


def _words(seed: torch.Tensor, offset: torch.Tensor) -> tuple[tuple[Word, Word], tuple[Word, Word]]:
    key, counter = seed.to(torch.int64), offset.to(torch.int64)
    high = (counter >> 32) & _LOW if offset.dtype is torch.int64 else 0
    return (counter & _LOW, high), (key & _LOW, (key >> 32) & _LOW)


def _as_tensor(word: Word, like: torch.Tensor) -> torch.Tensor:
    if isinstance(word, torch.Tensor):
        return word
    return torch.full((), word, dtype=torch.int64, device=like.device)


def _uniform32(word: torch.Tensor) -> torch.Tensor:
    # The word read as a signed one, and inverted where that is negative.
    folded = (word >> 31).mul_(_LOW).bitwise_xor_(word)
    return folded.to(torch.float32).mul_(TINY_32).clamp_min_(TINY_32)


def _uniform64(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    # high * 2**32 is exact, so the sum rounds once, as converting the 64-bit integer does.
    return high.to(torch.float64).mul_(4294967296.0).add_(low).mul_(_SCALE_64).clamp_min_(TINY_64)


def _rounds(counter: tuple[Word, Word], key: tuple[Word, Word], outputs: int) -> tuple[Word, ...]:
    """The first `outputs` (1, 2 or 4) words after ten rounds on the counter (low, high, 0, 0)."""
    full = torch.broadcast_shapes(*(w.shape for w in (*counter, *key) if isinstance(w, torch.Tensor)))
    (c0, c1), c2, c3 = counter, 0, 0
    keys_0, keys_1 = _round_keys(key[0], _KEY_0), _round_keys(key[1], _KEY_1)
    for i in range(8):
        # The first counter is the caller's, later ones are made here; a product may take their place.
        p0, p1 = (_product(c0, _MUL_0), _product(c2, _MUL_1)) if i else (c0 * _MUL_0, c2 * _MUL_1)
        c0, c1 = _mix(p1, c1, keys_0[i], full), p1
        c2, c3 = _mix(p0, c3, keys_1[i], full), p0
    p1 = _product(c2, _MUL_1)
    if outputs <= 2:
        # Words 0 and 1 depend on words 1 and 2 of the round before only; the others need not be kept.
        del c1, c2
        c0 = _mix(_product(c0, _MUL_0), c3, keys_1[8], full)
        del c3
        last = _product(c0, _MUL_1)
        first = _mix(last, p1, keys_0[9], full)
        return (first,) if outputs == 1 else (first, last & _LOW)
    p0 = _product(c0, _MUL_0)
    c0, c2 = _mix(p1, c1, keys_0[8], full), _mix(p0, c3, keys_1[8], full)
    q0, q1 = _product(c0, _MUL_0), _product(c2, _MUL_1)
    return _mix(q1, p1, keys_0[9], full), q1 & _LOW, _mix(q0, p0, keys_1[9], full), q0 & _LOW


def _product(word: Word, factor: int) -> Word:
    """In the place of the word."""
    return word.mul_(factor) if isinstance(word, torch.Tensor) else word * factor


def _round_keys(key: Word, step: int) -> Sequence[Word]:
    if not isinstance(key, torch.Tensor):
        return [(key + i * step) & _LOW for i in range(10)]
    steps = torch.arange(0, 10 * step, step, dtype=torch.int64, device=key.device)
    return (key.unsqueeze(-1) + steps).bitwise_and_(_LOW).unbind(-1)


def _mix(product: Word, word: Word, key: Word, full: torch.Size) -> Word:
    """Upper half of the product ^ word ^ key. The upper bits of `word` may be anything."""
    x = product >> 32
    if not isinstance(x, torch.Tensor) or x.shape != full:
        return (x ^ word ^ key) & _LOW
    return x.bitwise_xor_(word).bitwise_xor_(key).bitwise_and_(_LOW)
