"""What only hybrid models and other attention back ends do with the cache, forced upon a plain model."""

from __future__ import annotations

import jobs
import pytest
from test_engine_drafts import by_rows


@pytest.fixture(scope="module")
def said(engines):
    zeroing = [
        {**engine, "zero_blocks": True} for engine in jobs.plain(jobs.V2) if engine["name"] in ("tight", "prefix")
    ]
    (drafting,) = jobs.dense_drafts({})
    llm = {**drafting["llm"], "block_size": 64}
    split = {**drafting, "name": "split", "llm": llm, "kernel_block_size": 32}
    return engines.run("cache", [*zeroing, split])


@pytest.mark.parametrize(("engine", "call"), [("tight", "greedy"), ("prefix", "cold"), ("prefix", "warm")])
def test_new_blocks_are_zeroed_and_nothing_else_is(engines, said, engine, call):
    """Blocks are used again where the cache is tight, and kept where prefixes are."""
    v1 = engines.run("plain-v1", jobs.plain(jobs.V1))
    assert said[engine]["calls"][call]["tokens"] == v1[engine]["calls"][call]["tokens"]
    assert said[engine]["runner"]["owners"]["vllm.v1.worker.utils:KVBlockZeroer.zero_block_ids"] == "kunlunfork"
    zeroed = said[engine]["zeroed"]
    assert all(zero for _, zero in zeroed)
    assert len(zeroed) > 10
    if engine == "tight":
        assert any(dirty for dirty, _ in zeroed)


def test_drafts_of_split_blocks(engines, said, interpreter):
    """Upstream 0.25.1 takes the manager's block size for tables of kernel blocks, and slots behind the cache's end."""
    expected = interpreter["drafts: dense"]
    assert by_rows(said["split"]["drafts"], engines) == by_rows(expected["drafts"], engines)
    for name, call in expected["calls"].items():
        assert said["split"]["calls"][name]["tokens"] == call["tokens"]
