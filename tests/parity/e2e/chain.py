# SPDX-License-Identifier: Apache-2.0
"""Tokens with a known future: the arithmetic behind the models of `models.py`, without torch.

The chain target's next token is a fixed permutation of the current one, so every output can be checked. Its drafts
guess by tables of the same kind, so every acceptance can be counted beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIZE = 512
END, MASK = SIZE - 2, SIZE - 1
# The tokens that a model ever says.
WORDS = SIZE - 2


def _cycle() -> tuple[int, ...]:
    order = list(range(WORDS))
    random.Random("one cycle").shuffle(order)
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    return tuple(following[t] for t in range(WORDS))


def _half() -> tuple[int, ...]:
    """Right for about two tokens in three: one guess is often right, four in a row seldom."""
    wrong = set(random.Random("wrong ones").sample(range(WORDS), WORDS * 3 // 10))
    return tuple(NEXT[(t + 17) % WORDS] if t in wrong else NEXT[t] for t in range(WORDS))


def _never() -> tuple[int, ...]:
    return tuple(NEXT[(t + 17) % WORDS] for t in range(WORDS))


NEXT = _cycle()
# Where each draft stands at a token: the token whose successor it guesses.
GUESSES: Mapping[str, tuple[int, ...]] = {"exact": NEXT, "bonus": NEXT, "half": _half(), "never": _never()}


def prompts(count: int, seed: str = "prompts", longest: int = 40) -> list[list[int]]:
    """Prompts of 3 to `longest` tokens, the same everywhere."""
    rng = random.Random(seed)
    return [[rng.randrange(WORDS) for _ in range(rng.randint(3, longest))] for _ in range(count)]


def continuation(prompt: Sequence[int], length: int) -> list[int]:
    """What the chain target says after a prompt, greedily."""
    out: list[int] = []
    token = prompt[-1]
    for _ in range(length):
        token = NEXT[token]
        out.append(token)
    return out


@dataclass(frozen=True)
class Acceptance:
    """Counts over a whole run, as vLLM's metrics have them; `by_position[i]`: rounds that accepted draft i."""

    rounds: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]


def acceptance(prompts: Sequence[Sequence[int]], draft: str, length: int, steps: int) -> Acceptance:
    """What must be accepted of the drafts when `length` tokens are generated for each prompt, `steps` drafts a round.

    The first token comes from the prompt; each round after it verifies all its drafts, also those past the end.
    """
    guess = GUESSES[draft]
    rounds = 0
    by_position = [0] * steps
    for prompt in prompts:
        token, said = NEXT[prompt[-1]], 1
        while said < length:
            rounds += 1
            drafted = token
            for position in range(steps):
                drafted = guess[drafted]
                token = NEXT[token]
                said += 1
                if drafted != token:
                    break
                by_position[position] += 1
            else:
                token = NEXT[token]
                said += 1
    return Acceptance(rounds, rounds * steps, sum(by_position), tuple(by_position))
