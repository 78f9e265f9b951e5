"""Settings of the on/off switches: which combinations a run goes through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kunlunfork.switches import Switch

MODES = ("all-on", "all-off", "each", "pairs", "full")
_PREFIX = "KUNLUN_"


@dataclass(frozen=True)
class Setting:
    """One combination. `off` has the switches that are off, `said` those of them that do not merely follow another."""

    name: str
    off: tuple[str, ...]
    said: tuple[str, ...]

    def environ(self) -> dict[str, str]:
        """The variables that make it; what needs a switch that is off follows by itself."""
        return dict.fromkeys(self.said, "0")


def on_off(switches: Sequence[Switch]) -> dict[str, str | None]:
    """The switches that are on unless turned off, each with the one that it needs."""
    return {s.name: s.needs for s in switches if s.default in ("on", "1")}


def settings(mode: str, needs: Mapping[str, str | None]) -> tuple[Setting, ...]:
    """The settings of a mode, all-on first, without doubles.

    needs: switch -> the one without which it has no effect (see `on_off`); a switch comes after the one it needs.
    """
    names = tuple(needs)
    on, off = frozenset[str](), frozenset(names)
    chosen = {
        "all-on": lambda: [on],
        "all-off": lambda: [off],
        "each": lambda: [on, *(_closed({name}, needs) for name in names), off],
        "pairs": lambda: _pairs(needs),
        "full": lambda: _full(needs),
    }[mode]()
    return tuple(_setting(combination, needs) for combination in dict.fromkeys(chosen))


def _closed(off: set[str], needs: Mapping[str, str | None]) -> frozenset[str]:
    """Off, and off with it all that need it."""
    closed = set(off)
    for name, needed in needs.items():
        if needed in closed:
            closed.add(name)
    return frozenset(closed)


def _full(needs: Mapping[str, str | None]) -> list[frozenset[str]]:
    """Every combination that can be, by the number of switches that are off."""
    names = tuple(needs)
    subsets = (set(c) for n in range(len(names) + 1) for c in itertools.combinations(names, n))
    return list(dict.fromkeys(_closed(subset, needs) for subset in subsets))


def _pairs(needs: Mapping[str, str | None]) -> list[frozenset[str]]:
    """A covering array: each pair of values that two switches can have together occurs in some setting."""
    names = tuple(needs)
    combinations = sorted(_full(needs), key=len)

    def covers(off: frozenset[str]) -> set[tuple[str, bool, str, bool]]:
        return {(a, a in off, b, b in off) for a, b in itertools.combinations(names, 2)}

    # All on and all off are of interest by themselves.
    chosen = [frozenset[str](), frozenset(names)]
    missing = set().union(*(covers(c) for c in combinations)).difference(*(covers(c) for c in chosen))
    while missing:
        best = max(combinations, key=lambda c: len(covers(c) & missing))
        chosen.append(best)
        missing -= covers(best)
    return chosen


def _setting(off: frozenset[str], needs: Mapping[str, str | None]) -> Setting:
    ordered = tuple(name for name in needs if name in off)
    said = tuple(name for name in ordered if needs[name] not in off)
    if not off:
        name = "all-on"
    elif len(off) == len(needs):
        name = "all-off"
    else:
        name = "off:" + ",".join(switch.removeprefix(_PREFIX) for switch in said)
    return Setting(name, ordered, said)
