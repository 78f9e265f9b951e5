# SPDX-License-Identifier: Apache-2.0
"""Passes over [rows, vocabulary] tensors in pieces, so that no temporary has their size."""

from collections.abc import Iterator

import torch

# Elements of one piece: an operator on as many takes about as long as its launch. Random numbers keep five int64 an
# element; on a CPU they should stay in its cache.
PIECE = 1 << 20
RNG_PIECE = {"cpu": 1 << 16}
BLOCK = 1024


def pieces(rows: int, vocab_size: int, elements: int | None = None, block: int = BLOCK) -> Iterator[slice]:
    """Column slices over the vocabulary: blocks of 1024, about `elements` (default PIECE) in all, at least one block.

    The host knows both numbers, so the shapes are the same in every step of a batch of this size.
    """
    width = max((elements or PIECE) // max(rows, 1) // block, 1) * block
    for start in range(0, vocab_size, width):
        yield slice(start, min(start + width, vocab_size))


def rng_elements(device: torch.device) -> int:
    """Elements of a piece for which random numbers are drawn."""
    return RNG_PIECE.get(device.type, PIECE)


def row_pieces(rows: int, width: int, elements: int | None = None) -> Iterator[slice]:
    """Row slices of about `elements` (default PIECE), at least a row each, for passes that need whole rows."""
    height = max((elements or PIECE) // max(width, 1), 1)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def row_max(logits: torch.Tensor) -> torch.Tensor:
    """Largest element of each row, [rows], in the tensor's own type. A NaN counts as -inf, as for `tl.max`."""
    rows, vocab_size = logits.shape
    best = [
        logits[:, piece].nan_to_num(float("-inf"), float("inf"), float("-inf")).amax(-1)
        for piece in pieces(rows, vocab_size)
    ]
    return best[0] if len(best) == 1 else torch.stack(best, -1).amax(-1)
