"""What each release's DSpark does: every point is found in the real code, and a change has its release."""

from __future__ import annotations

import diffkit
import pytest
from diffkit import Differ
from support import REPO

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff.points import POINTS, UNKNOWN, Checked
from kunlunfork.diff.report import Parts
from kunlunfork.diff.sides import Request
from kunlunfork.store import Base, Store

PINS = Content(REPO, clone=True).versions()
CONFIG = b"vllm/config/speculative.py"
TABLES = b"vllm/v1/worker/gpu/block_table.py"
DFLASH = b"vllm/v1/worker/gpu/spec_decode/dflash/speculator.py"


def by_title(points: tuple[Checked, ...]) -> dict[str, Checked]:
    return {each.point.title: each for each in points}


@pytest.mark.parametrize("pin", PINS)
def test_every_point_is_found_at_its_line(
    pin: str, bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request(("runner",), version=pin), Parts(interfaces=True))
    assert len(report.points) == len(POINTS)
    entries = store.entries(bases[pin].tree)
    for each in report.points:
        assert each.now.says != UNKNOWN, each.point.title
        assert each.now.path is not None and each.now.line is not None
        [(_, data)] = store.read({b"x": entries[each.now.path.encode()]}).values()
        assert data.split(b"\n")[each.now.line - 1].strip(), each.point.title


def test_what_the_releases_changed(bases: dict[str, Base], content: Content, store: Store, user_cache: Cache) -> None:
    request = Request(("runner",), version="0.25.1", against="0.27.1")
    found = by_title(diffkit.report(content, store, user_cache, request, Parts(interfaces=True)).points)
    changed = {title: [(c.version, c.says) for c in each.changes] for title, each in found.items() if each.changes}
    assert changed == {
        "Markov weights": [("0.27.1", "markov_w1 is replicated")],
        "block size": [("0.26.0", "fewer tokens are refused")],
        "anchor layout": [("0.27.1", "the anchor predicts, unless sample_from_anchor is false")],
        "slots": [("0.26.0", "the block size of the kernel's tables")],
        "width of fc": [("0.27.1", "one for each target layer that is configured")],
    }
    ours = found["slots"].ours
    assert ours is not None and ours.says == "the block size of the kernel's tables", "the fork mends it in 0.25.1"
    assert found["draft sampling"].now.says == "greedy, unless it is set otherwise"
    assert found["verification"].now.says == "standard, synthetic, block"


def test_code_of_no_known_form_needs_a_person(differ: Differ) -> None:
    old = b"                self.block_tables.block_sizes[gid],\n"
    differ.world.release("1.0", {DFLASH: old, TABLES: b"        self.kernel_block_sizes = 1\n", CONFIG: b"# nothing\n"})
    differ.world.release("1.1", {DFLASH: old, TABLES: b"# they are gone\n"})
    differ.world.release("1.2", {DFLASH: b"something_else()\n"})
    found = by_title(differ.report("runner", interfaces=True, against="1.2").points)
    assert found["draft sampling"].now.says == UNKNOWN and found["draft sampling"].changes == ()
    assert found["slots"].now.says == "the manager's, for tables of the kernel's"
    assert [(c.version, c.says) for c in found["slots"].changes] == [
        ("1.1", "the block size of the tables, which have one"), ("1.2", UNKNOWN),
    ]  # fmt: skip
    shown = differ.text("runner", interfaces=True, against="1.2").decode()
    assert "1.2: found in none of its known forms" in shown
