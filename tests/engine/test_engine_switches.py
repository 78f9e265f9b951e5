"""A switch that is off sends its sites elsewhere, and the answers stay."""

from __future__ import annotations

import jobs
import pytest
from e2e import chain

HOSTVEC = "KUNLUN_HOSTVEC"
POSTUPDATE = "KUNLUN_HOSTVEC_POSTUPDATE"
POSTUPD3 = "KUNLUN_POSTUPD3"
GREEDY = "KUNLUN_GUMBEL_GREEDY"
DFLASH = "KUNLUN_DFLASH_VEC"
REJ = "KUNLUN_REJ_XPU"
ALL = (HOSTVEC, GREEDY, DFLASH, REJ)

PROMPTS = jobs.EIGHT[:4]
LENGTH = 14

SETTINGS: dict[str, dict[str, str]] = {
    "all on": {},
    **{switch: {switch: "off"} for switch in (HOSTVEC, POSTUPDATE, POSTUPD3, GREEDY, DFLASH, REJ)},
    "all off": dict.fromkeys(ALL, "0"),
    "torch": {"KUNLUN_KERNELS": "torch"},
}

_INPUT_BATCH = {
    f"vllm.v1.worker.gpu.input_batch:{name}"
    for name in (
        "prepare_prefill_inputs",
        "prepare_pos_seq_lens",
        "combine_sampled_and_draft_tokens",
        "get_num_sampled_and_rejected",
        "post_update_num_computed_tokens",
        "expand_idx_mapping",
    )
}
_TABLES = {
    "vllm.v1.worker.gpu.block_table:BlockTables.gather_block_tables",
    "vllm.v1.worker.gpu.block_table:BlockTables.compute_slot_mappings",
    "vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor.apply_write",
    "vllm.v1.worker.gpu.buffer_utils:FusedStagedWriter.apply",
    "vllm.v1.worker.gpu.cp_utils:prepare_dcp_local_seq_lens",
}
_POST_UPDATE = {"vllm.v1.worker.gpu.input_batch:post_update"}
_DRAFT_INPUTS = {
    "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator:prepare_prefill_inputs",
    "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator:prepare_decode_inputs",
    "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator:update_draft_inputs",
    "vllm.v1.worker.gpu.spec_decode.dflash.speculator:prepare_dflash_inputs",
}
_REJECTION = {
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler._get_logprobs_tensors",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils:rejection_sample",
}
REFERENCE = {
    HOSTVEC: _INPUT_BATCH | _TABLES | _POST_UPDATE,
    POSTUPDATE: _POST_UPDATE,
    DFLASH: _DRAFT_INPUTS,
    REJ: _REJECTION,
    "all off": _INPUT_BATCH | _TABLES | _POST_UPDATE | _DRAFT_INPUTS | _REJECTION,
}


@pytest.fixture(scope="module")
def said(engines):
    call = jobs.call("greedy", PROMPTS, max_tokens=LENGTH)
    drawn = jobs.call("drawn", PROMPTS, max_tokens=LENGTH, temperature=0.8, seed=3, logprobs=1)
    llm = {"model": "soft", "draft": {"model": "draft-half"}}
    return engines.run(
        "switches",
        [{"name": name, "env": env, "llm": llm, "calls": [call, drawn]} for name, env in SETTINGS.items()],
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_answers_are_the_same(said, setting):
    call = said[setting]["calls"]["greedy"]
    assert call["tokens"] == [chain.continuation(prompt, LENGTH) for prompt in PROMPTS]
    expected = chain.acceptance(PROMPTS, "half", length=LENGTH, steps=jobs.STEPS)
    assert call["metrics"]["num_accepted_tokens_per_pos"] == list(expected.by_position)
    drawn, as_ever = said[setting]["calls"]["drawn"], said["all on"]["calls"]["drawn"]
    assert (drawn["tokens"], drawn["metrics"]) == (as_ever["tokens"], as_ever["metrics"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_site_runs_what_it_should(said, setting):
    targets = said[setting]["runner"]["targets"]
    assert len(targets) == 39, "a site runs upstream's kernel"
    by_layer: dict[str, set[str]] = {}
    for site, target in targets.items():
        by_layer.setdefault(target.partition(".")[0], set()).add(site)
    assert by_layer.get("reference", set()) == REFERENCE.get(setting, set())
    assert set(by_layer) <= {"launchers", "reference"}
    (post_update,) = (targets[site] for site in _POST_UPDATE)
    if setting == POSTUPD3:
        assert post_update == "launchers.input_batch:post_update_compact"
    else:
        assert post_update.endswith(".input_batch:post_update")


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_runner_says_so(said, setting):
    plan = said[setting]["runner"]["plan"]
    assert plan.startswith("torch kernels (")
    assert ("KUNLUN_KERNELS=torch" in plan) == (setting == "torch")
    for switch in SETTINGS[setting]:
        if switch != "KUNLUN_KERNELS":
            assert f"{switch}=off" in plan
    assert ("run reference" in plan) == (setting in REFERENCE)


def test_greedy_batches_draw_no_random_numbers(engines):
    calls = (
        jobs.call("greedy", PROMPTS, max_tokens=LENGTH),
        jobs.call("drawn", PROMPTS[:1], max_tokens=LENGTH, temperature=0.8, seed=3),
    )
    # With drafts, rejection_sample draws; without, gumbel_sample.
    drafts = {"with drafts": {"draft": {"model": "draft-half"}}, "without": {}}
    result = engines.run(
        "noise",
        [
            {
                "name": f"{call['name']} {draft}, switch {value}",
                "env": {**jobs.V2, GREEDY: value},
                "llm": {"model": "soft", **llm},
                "calls": [call],
                "count_draws": True,
            }
            for draft, llm in drafts.items()
            for value in ("on", "off")
            for call in calls
        ],
    )
    quiet = {name for name, engine in result.items() if engine["draws"] == 0}
    assert quiet == {"greedy with drafts, switch on", "greedy without, switch on"}


@pytest.mark.parametrize("kernels", ["fused", "vendor"])
def test_kernels_that_this_build_lacks_stop_the_engine(engines, kernels):
    engine = {
        "name": kernels,
        "env": {**jobs.V2, "KUNLUN_KERNELS": kernels},
        "llm": {"model": "chain"},
        "may_fail": True,
        "calls": [],
    }
    assert "requires Triton" in engines.run(f"kernels-{kernels}", [engine])[kernels]["error"]
