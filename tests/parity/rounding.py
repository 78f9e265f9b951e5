# SPDX-License-Identifier: Apache-2.0
"""How far a device may round from what upstream computes there, element by element. On a CPU: not at all.

Triton for NVIDIA compiles `/` of float32 to `div.full.f32`, at most 2 units in the last place from the quotient (PTX
ISA, "div"), and fuses `x - a * b` into one rounding. Torch divides exactly and rounds the product first. A case names
what a site stores of such a value (`Case.rounding`); everything else, and every token, is compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from compare import State

# From the state before the call and what upstream stored to the largest distance from it, float64, of its shape.
Bound = Callable[[State, torch.Tensor], torch.Tensor]

_EPS = torch.finfo(torch.float32).eps


def spacing(x: torch.Tensor) -> torch.Tensor:
    """Units in the last place, float64: the distance of |x| to the next number of its type (of 0: the least one)."""
    about = torch.finfo(x.dtype)
    # A hair more, for quotients that lie on the other side of a power of two.
    size = x.double().abs().nan_to_num(0.0, 0.0, 0.0) * (1 + 2.0**-20)
    exponent = torch.frexp(size.clamp(min=about.smallest_normal)).exponent.double()
    return torch.exp2(exponent - 1) * about.eps


def quotient(before: State, want: torch.Tensor) -> torch.Tensor:
    """Of what a division has made, and nothing afterwards: 2 units in the last place."""
    return 2 * spacing(want)


def penalised(before: State, want: torch.Tensor) -> torch.Tensor:
    """Of `logit * (1 / repetition or repetition) - frequency * count - presence`, arguments of apply_penalties.

    The reciprocal is 2 units off, its product with the logit q up to 3 eps |q|; the product with the count, at most
    |q| + |want| + |presence|, is rounded or not (eps / 2), and each difference is rounded (eps of what is left): in all
    less than 4 eps (|q| + |want| + |presence|). Rows without penalties are left alone.
    """
    rows = before["arg1"].long()
    repetition, frequency, presence = (before[f"arg{i}"].double()[rows, None] for i in (4, 5, 6))
    logits = before["arg0"].double()
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition).abs()
    bound = 4 * _EPS * (torch.maximum(scaled, logits.abs()) + want.double().abs() + presence.abs())
    return bound.masked_fill((repetition == 1) & (frequency == 0) & (presence == 0), 0.0)


def bounds(rounding: Mapping[str, Bound], before: State, after: State, device: torch.device) -> dict[str, torch.Tensor]:
    """The bounds of a case on a device, by path; none on a CPU."""
    if device.type == "cpu":
        return {}
    return {path: of(before, after[path]) for path, of in rounding.items() if isinstance(after.get(path), torch.Tensor)}
