"""Small edits against upstream edits right beside them, thousands of times: what is carried is right, by the oracle."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kunlunfork.bench import rebasecases, rebaseoracle
from kunlunfork.bench.rebasecases import KINDS, MARK, Function
from kunlunfork.rebase import anchor, scope

SOURCE = b'''\
import os
import sys
from typing import Any, List
from collections import (
    OrderedDict,
    defaultdict,
)


class A:
    @first
    @second(1)
    def run(self, a, b=None, *, c=1, **rest):
        """Run."""
        x = a
        if b:
            x = b
            go(x)
            go(x)
        elif a:
            go(x)
            stop(x)
        else:
            stop(x)
        for y in x:
            go(y)
            if y:
                continue
            go(y)
        return x

    def walk(
        self,
        a: int,
        b: int = 1,
    ) -> int:
        x = a
        if b:
            x = b
            go(x)
        return x
'''
NAMES = ("A.run", "A.walk")


def upstream(rng: random.Random, count: int) -> bytes:
    """The source with some edits, as another release has it; now and then with the functions in another order."""
    data = SOURCE
    for number in range(count):
        case = rebasecases.make(rng.choice([*KINDS]), Function(b"a.py", rng.choice(NAMES)), data, rng)
        if case is not None:
            data = case.ours.replace(MARK.encode(), b"theirs%d" % rng.choice((1, number + 2)))
    if rng.random() < 0.1:
        start = data.index(b"    def walk")
        first = next(i for i in (data.find(b"    @"), data.find(b"    def run")) if i >= 0)
        data = data[:first] + data[start:] + b"\n" + data[first:start].rstrip(b"\n") + b"\n"
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_carried_to_a_wrong_place(kind: str) -> None:
    rng = random.Random(kind)
    seen: Counter[str] = Counter()
    for _ in range(150):
        case = rebasecases.make(kind, Function(b"a.py", rng.choice(NAMES)), SOURCE, rng)
        new = upstream(rng, rng.choice((1, 2, 3, 5)))
        if case is None or rebasecases.parse(new) is None:
            continue
        merged = anchor.merge(b"a.py", case.old, case.ours, new)
        if merged is None:
            seen["refused"] += 1
            continue
        verdict = rebaseoracle.verdict(case, new, merged)
        seen[verdict] += 1
        assert verdict == "right", (case.ours.decode(), new.decode(), merged.decode())
        assert scope.check(b"a.py", case.old, case.ours, new, merged) is None
    assert seen["right"] > 50, seen
