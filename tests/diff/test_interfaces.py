"""The stages of one decode step, and runner and speculator side by side, from the code of the real releases."""

from __future__ import annotations

import diffkit
import pytest
from diffkit import Differ
from support import REPO

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff import sites, standins
from kunlunfork.diff.interfaces import Interfaces, Method
from kunlunfork.diff.report import Parts
from kunlunfork.diff.sides import Request
from kunlunfork.fork import load
from kunlunfork.store import Base, Store

PINS = Content(REPO, clone=True).versions()
RUNNER = b"vllm/v1/worker/gpu/model_runner.py"
SPECULATOR = b"vllm/v1/worker/gpu/spec_decode/speculator.py"
SMALL = b"""
from vllm.v1.worker.gpu.spec_decode.speculator import make


class GPUModelRunner:
    def __init__(self):
        self.speculator = make()

    def execute_model(self, scheduler_output):
        self.finish_requests(scheduler_output)
        batch = self.prepare_inputs(scheduler_output)
        self.model(batch)

    def finish_requests(self, scheduler_output):
        pass

    def prepare_inputs(self, scheduler_output):
        return prepare()

    def sample_tokens(self):
        self.sample()
        self.speculator.propose(1)

    def sample(self):
        pass


def prepare():
    pass


def unused():
    pass
"""
DRAFT = b"""
class Speculator:
    def propose(self, n):
        raise NotImplementedError


class Mine(Speculator):
    def propose(self, n):
        return helper()


def helper():
    pass


def make() -> Speculator:
    return Mine()
"""


def of_stage(found: Interfaces, name: str) -> set[str]:
    return {symbol[1] for stage in found.stages if stage.name == name for symbol, _ in stage.replaced}


def names(methods: tuple[Method, ...]) -> dict[str, Method]:
    return {method.name: method for method in methods}


def test_a_small_runner(differ: Differ) -> None:
    differ.world.release("1.0", {RUNNER: SMALL, SPECULATOR: DRAFT})
    newer = SMALL.replace(b"        self.sample()\n", b"        self.sample()\n        self.speculator.observe(1)\n")
    differ.world.release(
        "1.1", {RUNNER: newer, SPECULATOR: DRAFT.replace(b"propose(self, n)", b"propose(self, n, k=2)")}
    )
    found = differ.report("runner", interfaces=True, against="1.1").interfaces
    assert found is not None
    stages = {stage.name: stage for stage in found.stages}
    assert {name: [(e.caller, e.to) for e in stage.calls] for name, stage in stages.items()} == {
        "slots and idx_mapping": [("execute_model", "self.finish_requests")],
        "input preparation": [("execute_model", "self.prepare_inputs")],
        "forward": [("execute_model", "self.model")],
        "sampling": [("sample_tokens", "self.sample")],
        "draft": [("sample_tokens", "self.speculator.propose")],
    }
    assert stages["draft"].arrived == ("self.speculator.observe",) and stages["draft"].left == ()
    runner, propose = names(found.runner), names(found.propose)
    assert "unused" not in runner and "GPUModelRunner.__init__" not in runner
    assert runner["prepare"].callers == ("GPUModelRunner.prepare_inputs",)
    assert set(runner["GPUModelRunner.sample_tokens"].calls) == {
        "GPUModelRunner.sample", "Speculator.propose", "Mine.propose",
    }  # fmt: skip
    assert propose["helper"].callers == ("Mine.propose",), "what a base class promises, another does"
    assert propose["Mine.propose"].newer == ("+ k=2",)
    shown = differ.text("runner", interfaces=True, against="1.1").decode()
    assert "+ self.speculator.observe in 1.1" in shown


@pytest.mark.parametrize("pin", PINS)
def test_every_site_of_a_step_is_in_its_stage(
    pin: str, bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request(("runner",), version=pin), Parts(interfaces=True))
    found = report.interfaces
    assert found is not None
    wanted = {
        "slots and idx_mapping": {"KVBlockZeroer.zero_block_ids"},
        "staged writes": {"StagedWriteTensor.apply_write", "FusedStagedWriter.apply", "UvaBackedTensor.copy_to_uva"},
        "input preparation": {
            "prepare_prefill_inputs", "prepare_pos_seq_lens", "combine_sampled_and_draft_tokens", "expand_idx_mapping",
            "GPUModelRunner.prepare_inputs",
        },
        "attention metadata": {"BlockTables.gather_block_tables", "BlockTables.compute_slot_mappings"},
        "sampling": {
            "gumbel_sample", "apply_temperature", "apply_penalties", "rejection_sample", "get_num_sampled_and_rejected",
            "GPUModelRunner.sample",
        },
        "post-update": {"post_update", "post_update_num_computed_tokens"},
        "draft": {"prepare_dflash_inputs", "gumbel_sample", "BlockTables.compute_slot_mappings"},
    }  # fmt: skip
    # A release may call a launcher otherwise, and then the pin's site is called so.
    known = {each.name for each in standins.find(load(content, pin))}
    for stage, symbols in wanted.items():
        assert symbols & known, stage
        assert symbols & known <= of_stage(found, stage), stage
    seen = {symbol for stage in found.stages for symbol, _ in stage.replaced}
    assert {(site.path, site.qualname) for site in sites.load(load(content, pin))} <= seen, "none is hidden"
    assert len(of_stage(found, "not reached by name")) < 8
    assert not of_stage(found, "output copy"), "the copy is upstream's"
    assert "RejectionSampler.__call__" in names(found.verify)
    assert {"DFlashSpeculator.propose", "DSparkSpeculator._generate_draft"} <= set(names(found.propose))
    assert not any(method.name.endswith("_kernel") for method in (*found.runner, *found.verify, *found.propose))
