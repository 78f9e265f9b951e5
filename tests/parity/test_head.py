# SPDX-License-Identifier: Apache-2.0
"""The head of a step in two launches: what the launchers write one by one, they write together."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from test_launches import launches


def _module(name: str) -> Any:
    return importlib.import_module(f"{harness.kunlun_package()}.{name}")


Arguments = dict[str, Any]


def _step(seed: int) -> Arguments:
    """The inputs of a step as upstream's runner has them: padded offsets, rows in any order, prompts in the midst."""
    rng = random.Random(seed)
    rows, steps, columns = 9, rng.choice([0, 1, 3, 7]), 40
    reqs = rng.randrange(1, 7)
    drafts = [rng.randrange(0, steps + 1) for _ in range(reqs)]
    lens = [rng.randrange(n + 1, n + 6) if rng.random() < 0.4 else n + 1 for n in drafts]
    return {
        "steps": steps,
        "expands": steps > 0,
        "num_logits": sum(drafts) + reqs,
        "padded": min(rows, reqs + rng.randrange(3)),
        "idx_mapping": torch.tensor(rng.sample(range(rows), reqs), dtype=torch.int32),
        "cu_num_logits": harness.cumulative(n + 1 for n in drafts),
        "query_start_loc": harness.cumulative(lens, pad_to=rows + 1),
        "num_computed": harness.ints(rng, rows, low=0, high=20),
        "prefill_len": harness.ints(rng, rows, low=1, high=24),
        "last_sampled": harness.ints(rng, rows, 1, low=0, high=90, dtype=torch.int64),
        "drafts": harness.ints(rng, rows, steps, low=0, high=90, dtype=torch.int64),
        "input_ids": harness.poison(64),
        "pos": harness.poison(64, dtype=torch.int64),
        "seq_lens": harness.poison(rows),
        "tables": SimpleNamespace(
            max_num_batched_tokens=64,
            slot_mappings=harness.poison(2, 64, dtype=torch.int64),
            block_tables=[SimpleNamespace(gpu=harness.ints(rng, rows, n, low=0, high=99)) for n in (columns, 20)],
            input_block_tables=[harness.poison(rows, n) for n in (columns, 20)],
            kernel_block_sizes=[1, 2],
            num_blocks=SimpleNamespace(gpu=harness.ints(rng, 2, rows, low=0, high=20)),
            cp_size=1, cp_rank=0, cp_interleave=1,
        ),
    }  # fmt: skip


def _run(s: Arguments, backend: str, together: bool, alter: Callable[[Arguments], torch.Tensor] | None = None) -> Any:
    """The calls of upstream's `prepare_inputs` and `prepare_attn`; returns all that they return and write."""

    def at(name: str) -> Any:
        return harness.implementation(name, backend)

    head = _module("kernels.head")
    state, starts = s["idx_mapping"], s["query_start_loc"]
    out: list[Any] = []

    def inputs() -> None:
        if s["expands"]:
            out.extend(at("input_batch:expand_idx_mapping")(state, s["num_logits"], s["cu_num_logits"], s["steps"] + 1))
        at("input_batch:prepare_pos_seq_lens")(state, starts, s["num_computed"], s["pos"], s["seq_lens"])
        mapping = state if alter is None else alter(s)
        out.append(
            at("input_batch:combine_sampled_and_draft_tokens")(
                s["input_ids"], mapping, s["last_sampled"], starts, s["seq_lens"][: s["padded"]], s["prefill_len"],
                s["drafts"], s["cu_num_logits"], s["num_logits"],
            )
        )  # fmt: skip

    def attention() -> None:
        out.extend(at("block_table:gather_block_tables")(s["tables"], state, s["padded"]))
        mapping = state if alter is None else alter(s)
        out.append(at("block_table:compute_slot_mappings")(s["tables"], mapping, starts, s["pos"][:40], 40))

    for calls, scope in ((inputs, head.inputs), (attention, head.attention)):
        if together:
            with scope():
                calls()
        else:
            calls()
    tables = s["tables"]
    return [*out, s["input_ids"], s["pos"], s["seq_lens"], tables.slot_mappings, *tables.input_block_tables]


def _equal(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == b.dtype and torch.equal(a, b), i


@pytest.mark.parametrize("seed", range(12))
def test_together_is_one_by_one(seed: int) -> None:
    want, step = _run(_step(seed), "torch", False), _step(seed)
    with launches() as seen:
        got = _run(step, "fused", True)
    # A group of the cache is a launch.
    assert seen == ["_inputs", "_attention", "_attention"]
    _equal(got, want)


def test_another_mapping_is_launched_alone() -> None:
    def other(s: Arguments) -> torch.Tensor:
        return s["idx_mapping"].flip(0)

    seed = next(i for i in range(50) if _step(i)["expands"] and len(_step(i)["idx_mapping"]) > 2)
    step = _step(seed)
    with launches() as seen:
        got = _run(step, "fused", True, other)
    assert [name for name in seen if name != "flip"] == [
        "_expand",
        "_positions",
        "_combine",
        "_gather",
        "_gather",
        "_slots",
        "_slots",
    ]
    _equal(got, _run(_step(seed), "torch", False, other))


def test_nothing_is_launched_where_a_step_fails() -> None:
    s = _step(1)
    before = s["pos"].clone()
    with pytest.raises(KeyError), launches() as seen, _module("kernels.head").inputs():
        positions = harness.implementation("input_batch:prepare_pos_seq_lens", "fused")
        positions(s["idx_mapping"], s["query_start_loc"], s["num_computed"], s["pos"], s["seq_lens"])
        raise KeyError
    assert seen == [] and torch.equal(s["pos"], before)
    # And what comes later is not collected.
    positions(s["idx_mapping"], s["query_start_loc"], s["num_computed"], s["pos"], s["seq_lens"])
    assert not torch.equal(s["pos"], before)
