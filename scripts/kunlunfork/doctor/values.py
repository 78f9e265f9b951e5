"""Values of a program that is read, not run: what is known, and what is not."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True)
class Ref:
    """Something whose value the facts do not have, by its text."""

    text: str


@dataclass(frozen=True)
class Present:
    """Of a fact: something is there, that is neither None nor false; no more is known of it."""


PRESENT = Present()


@dataclass(frozen=True)
class Feature:
    """An item that a method gathers: `certain`, or where `condition` holds, which the facts do not say."""

    text: str
    certain: bool
    line: int
    condition: str


@dataclass
class Gathered:
    """A list that grows. It counts as empty while nothing in it is certain: nobody has asked for the rest."""

    items: list[Feature] = field(default_factory=list)

    def copy(self) -> Gathered:
        return Gathered(list(self.items))


Value = Union[None, bool, int, float, str, "tuple[Value, ...]", Ref, Present, Gathered]


_ORDER: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def truth(value: Value, facts: Mapping[str, Value]) -> bool | None:
    """Whether a value counts as true; None where nobody knows."""
    if isinstance(value, Ref):
        return True if isinstance(facts.get(value.text), Present) else None
    if isinstance(value, Gathered):
        return any(item.certain for item in value.items)
    return bool(value)


def compare(op: ast.cmpop, left: Value, right: Value, facts: Mapping[str, Value]) -> bool | None:
    """The result of a comparison; None where nobody knows."""
    if isinstance(op, ast.Is | ast.IsNot):
        same = _same(left, right, facts)
        return None if same is None else same is isinstance(op, ast.Is)
    if isinstance(left, Ref | Gathered) or isinstance(right, Ref | Gathered):
        return None
    try:
        return _plainly(op, left, right)
    except TypeError:
        return None


def _same(left: Value, right: Value, facts: Mapping[str, Value]) -> bool | None:
    if isinstance(left, Ref) and right is None:
        return False if isinstance(facts.get(left.text), Present) else None
    if isinstance(left, Ref | Gathered) or isinstance(right, Ref | Gathered):
        return None
    return left is right


def _plainly(op: ast.cmpop, left: object, right: object) -> bool | None:
    if isinstance(op, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, tuple | str):
        return (left in right) is isinstance(op, ast.In)
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return bool(_ORDER[type(op)](left, right))
    return None
