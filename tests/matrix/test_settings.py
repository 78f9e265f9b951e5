from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunlunfork import switches
from kunlunfork.content import Content
from kunlunfork.matrix.settings import MODES, Setting, on_off, settings

NEEDS: Mapping[str, str | None] = {"KUNLUN_A": None, "KUNLUN_B": "KUNLUN_A", "KUNLUN_C": "KUNLUN_B", "KUNLUN_D": None}


def _valid(setting: Setting) -> bool:
    off = set(setting.off)
    return all(name in off for name, needed in NEEDS.items() if needed in off)


def test_each_turns_off_one_and_what_needs_it() -> None:
    assert settings("each", NEEDS) == (
        Setting("all-on", (), ()),
        Setting("off:A", ("KUNLUN_A", "KUNLUN_B", "KUNLUN_C"), ("KUNLUN_A",)),
        Setting("off:B", ("KUNLUN_B", "KUNLUN_C"), ("KUNLUN_B",)),
        Setting("off:C", ("KUNLUN_C",), ("KUNLUN_C",)),
        Setting("off:D", ("KUNLUN_D",), ("KUNLUN_D",)),
        Setting("all-off", tuple(NEEDS), ("KUNLUN_A", "KUNLUN_D")),
    )


def test_all_on_and_all_off_alone() -> None:
    assert [s.name for s in settings("all-on", NEEDS)] == ["all-on"]
    assert [s.off for s in settings("all-off", NEEDS)] == [tuple(NEEDS)]


def test_full_has_every_combination_that_can_be_once() -> None:
    found = settings("full", NEEDS)
    # A chain of three has four states, the one by itself two.
    assert len({s.off for s in found}) == len(found) == 8
    assert all(_valid(s) for s in found)
    assert found[0].name == "all-on"
    assert "off:B,D" in {s.name for s in found}


Covered = set[tuple[str, bool, str, bool]]


def _covered(needs: Mapping[str, str | None], found: tuple[Setting, ...]) -> Covered:
    return {(a, a in s.off, b, b in s.off) for s in found for a, b in itertools.combinations(needs, 2)}


def test_pairs_cover_every_pair_of_values_that_can_be() -> None:
    pairs, full = settings("pairs", NEEDS), settings("full", NEEDS)
    assert _covered(NEEDS, pairs) == _covered(NEEDS, full)
    assert len(pairs) < len(full)
    assert all(_valid(s) for s in pairs)


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=7))
def test_pairs_are_a_covering_array_whatever_needs_what(parents: list[int]) -> None:
    """Each switch needs one that comes before it, or none."""
    needs = {f"KUNLUN_S{i}": f"KUNLUN_S{p}" if 0 <= p < i else None for i, p in enumerate(parents)}
    pairs, full = settings("pairs", needs), settings("full", needs)
    # What can be, by itself and not by the code under test: all subsets that are closed.
    names = list(needs)
    possible: Covered = set()
    for values in itertools.product((False, True), repeat=len(names)):
        off = dict(zip(names, values, strict=True))
        if all(off[name] or not needed or not off[needed] for name, needed in needs.items()):
            possible |= {(a, off[a], b, off[b]) for a, b in itertools.combinations(names, 2)}
    assert _covered(needs, pairs) == possible
    assert len(pairs) <= len(full) and len(set(pairs)) == len(pairs)
    assert {"all-on", "all-off"} <= {s.name for s in pairs}


def test_pairs_of_the_fork_are_a_covering_array(content: Content) -> None:
    needs = on_off(switches.read(content, "0.25.1", {}))
    pairs, full = settings("pairs", needs), settings("full", needs)
    assert _covered(needs, pairs) == _covered(needs, full)
    assert (len(pairs), len(full)) == (7, 32)


@pytest.mark.parametrize("mode", MODES)
def test_every_setting_is_one_that_the_fork_accepts(content: Content, mode: str) -> None:
    """The fork's own parser makes of the variables exactly what the setting says."""
    needs = on_off(switches.read(content, "0.25.1", {}))
    assert len(needs) == 6
    found = settings(mode, needs)
    assert len({s.name for s in found}) == len(found)
    for setting in found:
        read = {s.name: s.value for s in switches.read(content, "0.25.1", setting.environ())}
        assert {name: read[name] for name in needs} == {n: "off" if n in setting.off else "on" for n in needs}


def test_each_of_the_fork_has_eight_settings(content: Content) -> None:
    needs = on_off(switches.read(content, "0.25.1", {}))
    assert [s.name for s in settings("each", needs)] == [
        "all-on",
        "off:HOSTVEC",
        "off:HOSTVEC_POSTUPDATE",
        "off:POSTUPD3",
        "off:GUMBEL_GREEDY",
        "off:DFLASH_VEC",
        "off:REJ_XPU",
        "all-off",
    ]
    assert len(settings("full", needs)) == 4 * 2**3
