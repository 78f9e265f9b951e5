"""One line of `kunlunfork doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kunlunfork.errors import ForkError

State = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Check:
    """What was looked at and what was found; every bad one has the `fix` that mends it."""

    name: str
    state: State
    found: str
    fix: str | None = None
    details: tuple[str, ...] = ()


def of_error(name: str, error: ForkError, state: State = "bad") -> Check:
    """A refusal of another part of the tool, as a finding."""
    found = error.message if error.found is None else f"{error.message} (found: {error.found})"
    fix = error.fix
    if fix is None:
        fix = "see the line above" if error.expected is None else f"expected: {error.expected}"
    return Check(name, state, found, fix, error.details)


def listed(items: Iterable[str], most: int = 10) -> tuple[str, ...]:
    """The first of many, and how many more there are."""
    every = tuple(items)
    return every if len(every) <= most else (*every[:most], f"... and {len(every) - most} more")
