"""Which build of the fork a tree says it is."""

from __future__ import annotations

import sys

import pytest

SERIES, OVERLAY = "5" * 64, "0a" * 32
STAMP = f"# SPDX-License-Identifier: Apache-2.0\nPIN = '0.25.1'\nSERIES = '{SERIES}'\nOVERLAY = '{OVERLAY}'\n"


@pytest.fixture
def build(kunlun, world, monkeypatch):
    """Write `_build.py` where apply would."""
    monkeypatch.setattr(sys.modules[kunlun.stamp.__package__], "__path__", [str(world.root)])

    def build(source):
        world.write("_build", source)

    return build


def test_a_developers_tree_has_none(kunlun, build):
    stamp = kunlun.stamp.read()
    assert (stamp.pin, stamp.series, stamp.overlay) == ("unstamped",) * 3
    assert str(stamp) == "kunlunfork (unstamped: a developer's tree)"
    assert stamp.member() == {"pin": "unstamped", "overlay": "unstamped", "series": "unstamped"}


def test_the_stamp_of_apply_is_read(kunlun, build):
    build(STAMP)
    stamp = kunlun.stamp.read()
    assert str(stamp) == "kunlunfork 0.25.1 (overlay 0a0a0a0a0a0a, series 555555555555)"
    assert stamp.member() == {"pin": "0.25.1", "overlay": OVERLAY, "series": SERIES}


def test_a_stamp_that_is_broken_is_not_taken_for_none(kunlun, build):
    build("import kunlun_no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="kunlun_no_such_module"):
        kunlun.stamp.read()


def test_the_overlay_ships_no_stamp(kunlun):
    assert not (kunlun.gpu / "kunlun" / "_build.py").exists()
