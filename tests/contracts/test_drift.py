"""What of the real fork drifts when the real release is edited, and what does not."""

from __future__ import annotations

import pytest
from contractkit import Bench

from kunlunfork.contracts import model
from kunlunfork.contracts.drift import drift
from kunlunfork.symbols.release import Given

GPU = "vllm.v1.worker.gpu."
BATCH, TABLE, RUNNER = f"{GPU}input_batch", f"{GPU}block_table", f"{GPU}model_runner"


def roles(bench: Bench, symbol: str) -> tuple[str, ...]:
    return next((c.roles for c in bench.held.contracts if str(c) == symbol), ())


@pytest.mark.parametrize(
    ("symbol", "role"),
    [
        (f"{BATCH}:post_update", model.REPLACES),
        (f"{BATCH}:_post_update_kernel", model.BEHIND),
        (f"{GPU}sample.gumbel:tl_rand32", model.BEHIND),  # a helper of a helper of a kernel
        (f"{GPU}spec_decode.rejection_sampler_utils:_compute_global_logsumexp", model.BEHIND),
        ("vllm.v1.attention.backends.utils:PAD_SLOT_ID", model.BEHIND),
        (f"{RUNNER}:GPUModelRunner.sample", model.OVERRIDES),
        ("vllm.v1.worker.xpu_model_runner:XPUModelRunnerV2.__init__", model.OVERRIDES),  # made by `type` at run time
        ("vllm.v1.worker.cpu.model_runner:CPUModelRunner", model.SUBCLASSES),
        (f"{GPU}buffer_utils:UvaBuffer", model.REBINDS),
        (f"{GPU}buffer_utils:UvaBackedTensor.copy_to_uva", model.REBINDS),  # named in a table of strings
        (f"{GPU}buffer_utils:_DEFAULT_MAX_CONCURRENCY", model.USES),
        ("vllm.config.vllm:VllmConfig.use_v2_model_runner", model.PATCHED),  # uses HAS_TRITON, which a patch binds
        ("vllm.v1.worker.gpu_worker:Worker.init_device", model.PATCHED),
        (f"{BATCH}:InputBatch.idx_mapping", model.ATTRIBUTE),
        (f"{BATCH}:InputBuffers.seq_lens", model.ATTRIBUTE),
        (f"{RUNNER}:GPUModelRunner.kv_block_zeroer", model.ATTRIBUTE),
        ("vllm.v1.worker.utils:KVBlockZeroer._meta", model.ATTRIBUTE),  # of what the runner passes to a helper
        (f"{GPU}buffer_utils:StagedWriteTensor._staged_write_cu_lens", model.ATTRIBUTE),
        (f"{GPU}sample.states:SamplingStates.temperature", model.ATTRIBUTE),
        ("vllm.distributed.parallel_state:get_world_group", model.CALLS),
        ("vllm.v1.outputs:LogprobsTensors", model.CALLS),
        ("vllm.logger:init_logger", model.IMPORTS),
    ],
)
def test_a_contract(bench: Bench, symbol: str, role: str) -> None:
    assert role in roles(bench, symbol)


def test_every_site_is_a_contract_and_every_contract_is_there(bench: Bench) -> None:
    launchers = [c for c in bench.held.contracts if model.REPLACES in c.roles]
    assert len(launchers) == 39
    behind = {str(c): c.sites for c in bench.held.contracts if model.BEHIND in c.roles}
    assert behind[f"{GPU}buffer_utils:_load_ptr"]
    assert not bench.against(bench.edited()).drifts
    assert bench.found().contracts == len(bench.held.contracts)


@pytest.mark.parametrize(
    ("module", "old", "new", "symbol", "classes"),
    [
        (BATCH, "num_new_sampled_tokens: int = 1,  # excl", "num_new_sampled_tokens: int = 0,  # excl",
         f"{BATCH}:combine_sampled_and_draft_tokens", ("default",)),
        (RUNNER, "np.fromiter(idx_mapping_iter, dtype=np.int32,", "np.fromiter(idx_mapping_iter, dtype=np.int64,",
         f"{BATCH}:InputBatch.idx_mapping", ("set by",)),
        ("vllm.v1.outputs", "class LogprobsTensors(NamedTuple):", "class Logprobs(NamedTuple):",
         "vllm.v1.outputs:LogprobsTensors", ("import", "renamed")),
        (TABLE, "def gather_block_tables(", "def gather_tables(",
         f"{TABLE}:BlockTables.gather_block_tables", ("renamed",)),
        (TABLE, "def gather_block_tables(\n        self,", "def gather_block_tables(\n        self, *, out,",
         f"{TABLE}:BlockTables.gather_block_tables", ("signature",)),
    ],
)  # fmt: skip
def test_an_edit(bench: Bench, module: str, old: str, new: str, symbol: str, classes: tuple[str, ...]) -> None:
    found = bench.mutated((module, old, new))
    assert symbol in found, list(found)
    assert set(classes) <= set(found[symbol].classes)


def test_a_member_that_ours_gets_in_the_way_of(bench: Bench) -> None:
    new = "class GPUModelRunner(LoRAModelRunnerMixin):\n    def kunlun_head(self): ...\n"
    found = bench.mutated((RUNNER, "class GPUModelRunner(LoRAModelRunnerMixin):\n", new))
    assert found[f"{RUNNER}:GPUModelRunner"].classes == ("members",)
    other = bench.mutated(
        (RUNNER, "class GPUModelRunner(LoRAModelRunnerMixin):\n", new.replace("kunlun_head", "other"))
    )
    assert not other


def test_a_file_that_is_gone(bench: Bench) -> None:
    path = b"vllm/v1/worker/gpu/sample/min_p.py"
    found = {str(d.contract): d for d in bench.against(Given({path: None}, bench.release)).drifts}
    assert found[f"{GPU}sample.min_p:apply_min_p"].classes == ("removed",)
    moved = b"vllm/v1/worker/gpu/sample/minimum.py"
    source = bench.release.source(f"{GPU}sample.min_p")
    found = {str(d.contract): d for d in bench.against(Given({path: None, moved: source}, bench.release)).drifts}
    assert found[f"{GPU}sample.min_p:apply_min_p"].classes[0] == "moved"
    assert str(found[f"{GPU}sample.min_p:apply_min_p"].to) == f"{GPU}sample.minimum:apply_min_p"


def test_the_releases_on_the_way(bench: Bench) -> None:
    """What one release did and the next took back is no drift; what both did is said of both."""
    name, old = f"{BATCH}:combine_sampled_and_draft_tokens", "num_new_sampled_tokens: int = 1,  # excl"
    one, two = (bench.edited((BATCH, old, old.replace("1", n))) for n in "02")
    found = drift(bench.held, ("0.25.1", bench.release), [("a", lambda: one), ("b", lambda: two)])
    assert [(s.version, s.classes) for d in found.drifts for s in d.steps] == [("a", ("default",)), ("b", ("default",))]
    back = drift(bench.held, ("0.25.1", bench.release), [("a", lambda: one), ("b", lambda: bench.release)])
    assert not back.drifts
    assert [(str(d.contract), len(d.steps)) for d in back.returned] == [(name, 2)]
    assert str(found.drifts[0].contract) == name
