"""Where Triton launches (here: its interpreter), switches that are off go back to upstream's kernels.

KUNLUNFORK_ENGINE_TRITON names a folder with Triton 3.6.0; the engine environment itself has none.
"""

from __future__ import annotations

import os

import jobs
import pytest
from e2e import chain
from test_engine_switches import DFLASH, GREEDY, HOSTVEC, REFERENCE, REJ

PROMPTS, LENGTH = jobs.EIGHT[:2], 8
SETTINGS = {
    "auto": {},
    "torch": {"KUNLUN_KERNELS": "torch"},
    "torch, hostvec off": {"KUNLUN_KERNELS": "torch", HOSTVEC: "off"},
    "torch, drafts off": {"KUNLUN_KERNELS": "torch", DFLASH: "off", REJ: "off"},
    "upstream": {"KUNLUN_KERNELS": "upstream", HOSTVEC: "off", GREEDY: "off"},
}


@pytest.fixture(scope="module")
def said(engines):
    triton = os.environ.get("KUNLUNFORK_ENGINE_TRITON")
    if not triton:
        pytest.skip("no Triton for its interpreter")
    call = jobs.call("greedy", PROMPTS, max_tokens=LENGTH)
    llm = {"model": "soft", "draft": {"model": "draft-half"}}
    return engines.run(
        "with-triton",
        [{"name": name, "env": env, "llm": llm, "calls": [call]} for name, env in SETTINGS.items()],
        oracle=True,
        PYTHONPATH=triton,
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_mixed_kernels_say_the_same(said, setting):
    call = said[setting]["calls"]["greedy"]
    assert call["tokens"] == [chain.continuation(prompt, LENGTH) for prompt in PROMPTS]
    expected = chain.acceptance(PROMPTS, "half", length=LENGTH, steps=jobs.STEPS)
    assert call["metrics"]["num_accepted_tokens_per_pos"] == list(expected.by_position)


@pytest.mark.parametrize(
    ("setting", "plan", "upstreams"),
    [
        ("auto", "upstream kernels (auto: a trivial Triton kernel launches)", None),
        ("upstream", "upstream kernels (KUNLUN_KERNELS=upstream)", None),
        ("torch", "torch kernels (KUNLUN_KERNELS=torch)", set()),
        ("torch, hostvec off", "sites switched off run upstream", REFERENCE[HOSTVEC]),
        ("torch, drafts off", "sites switched off run upstream", REFERENCE[DFLASH] | REFERENCE[REJ]),
    ],
)
def test_whose_kernels_run(said, setting, plan, upstreams):
    runner = said[setting]["runner"]
    assert plan in runner["plan"]
    assert not any(target.startswith("reference") for target in runner["targets"].values())
    if upstreams is None:
        assert runner["targets"] == {}
        assert "kunlunfork" not in runner["owners"].values()
    else:
        owners = {site for site, owner in runner["owners"].items() if owner == "upstream"}
        assert owners == {site for site in upstreams if runner["owners"][site] != "not loaded"}
        assert set(runner["targets"]).isdisjoint(upstreams)
