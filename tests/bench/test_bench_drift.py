"""What `bench drift` counts; `kunlunfork bench drift` measures with hundreds of edits."""

from __future__ import annotations

import pytest

from kunlunfork.bench import drift as measured
from kunlunfork.bench import driftcases, driftkinds
from kunlunfork.bench.drift import Judged
from kunlunfork.bench.driftcases import Edit, World
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.contracts.run import Workshop
from kunlunfork.diff import sites
from kunlunfork.fork import load
from kunlunfork.progress import Silent
from kunlunfork.sources.base import Settings
from kunlunfork.store import Base, Store


@pytest.fixture(scope="module")
def shop(content: Content, store: Store, base: Base, user_cache: Cache) -> Workshop:
    return Workshop(content, store, Settings(user_cache, None, True, Silent()))


@pytest.fixture(scope="module")
def world(shop: Workshop) -> World:
    own = load(shop.content, "0.25.1")
    overlay = {path: file.data for path, file in own.overlay.files.items() if path.endswith(b".py")}
    return driftcases.world(shop.held("0.25.1")[1], sites.load(own), overlay)


def test_what_matters_is_told_from_the_text(world: World) -> None:
    assert len(world.launchers) == 39
    behind = {t.node.name for t in world.behind}
    assert {"_post_update_kernel", "_load_ptr", "tl_rand32", "gumbel_block_argmax"} <= behind
    assert {t.node.name for t in world.overridden} >= {"sample", "prepare_inputs", "prepare_attn", "load_model"}
    assert len(world.callers) > 20
    assert len(world.unrelated) > 40
    assert not {str(t) for t in world.unrelated} & {str(t) for t in (*world.launchers, *world.behind)}
    assert "idx_mapping" in world.fields


def test_the_same_seed_draws_the_same_edits(world: World) -> None:
    first, again = (driftcases.draw(world, driftkinds.MATTER, 22, 3) for _ in range(2))
    assert first == again
    assert {e.kind for e in first} == set(driftkinds.MATTER)
    assert driftcases.draw(world, driftkinds.MATTER, 22, 4) != first


def test_right_and_wrong() -> None:
    matters, idle = (Edit("body", symbol, {}, "") for symbol in ("a:b", ""))
    assert Judged(matters, ("a:b", "c:d")).right
    assert not Judged(matters, ("c:d",)).right and not Judged(matters, ()).right
    assert Judged(idle, ()).right and not Judged(idle, ("a:b",)).right


def test_a_few_edits_of_each_kind(shop: Workshop) -> None:
    found = measured.judge(shop, measured.Plan("0.25.1", 14, 5))
    assert {j.edit.kind for j in found} == {*driftkinds.MATTER, *driftkinds.IDLE}
    assert [(j.edit.kind, j.edit.symbol, j.edit.what) for j in found if not j.right] == []
