"""Which runner a configuration gets."""

from __future__ import annotations

import jobs
import pytest

UPSTREAM = {"KUNLUN_KERNELS": "upstream"}
DSPARK = {"draft": "draft-exact"}
REFUSED = "Model Runner V2 requires Triton."
LOST = "launchers.input_batch: post_update"

# Case: the configuration, and whether it gets V2 or with which words it is refused.
CASES = {
    "default": ({}, True),
    "dspark": (DSPARK, True),
    "V2 asked for": ({"env": jobs.V2}, True),
    "V1 asked for": ({"env": jobs.V1}, False),
    "V1 asked for, with dspark": ({"env": jobs.V1, **DSPARK}, False),
    "torch kernels": ({"env": {"KUNLUN_KERNELS": "torch"}}, True),
    "every switch off": (
        {"env": dict.fromkeys(("KUNLUN_HOSTVEC", "KUNLUN_GUMBEL_GREEDY", "KUNLUN_DFLASH_VEC", "KUNLUN_REJ_XPU"), "0")},
        True,
    ),
    "upstream's kernels": ({"env": UPSTREAM}, False),
    "upstream's kernels, with dspark": ({"env": UPSTREAM, **DSPARK}, REFUSED),
    "upstream's kernels and V2 asked for": ({"env": {**UPSTREAM, **jobs.V2}}, REFUSED),
    "a launcher is missing": ({"lack": "input_batch:post_update"}, False),
    "a launcher is missing, with dspark": ({"lack": "input_batch:post_update", **DSPARK}, REFUSED),
    "a launcher is missing and V2 asked for": ({"lack": "input_batch:post_update", "env": jobs.V2}, REFUSED),
    "a launcher is missing and V1 asked for": ({"lack": "input_batch:post_update", "env": jobs.V1}, False),
    "a misspelt switch": ({"env": {"KUNLUN_HOSTVECT": "0"}}, "did you mean KUNLUN_HOSTVEC?"),
}


@pytest.fixture(scope="module")
def answers(engines):
    given = engines.configurations("gate", [{"model": "chain", **case} for case, _ in CASES.values()])
    return dict(zip(CASES, given, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_which_runner(answers, case):
    expected, answer = CASES[case][1], answers[case]
    if isinstance(expected, bool):
        assert answer["v2"] is expected, answer
    else:
        assert expected in answer["error"]


@pytest.mark.parametrize("case", CASES)
def test_what_the_fork_lacks_is_said(answers, case):
    said = [line for line in answers[case]["log"] if line.startswith("kunlunfork cannot stand in for Triton")]
    if "missing" in case and "V1 asked" not in case:
        (line,) = said
        assert LOST in line
    else:
        assert said == []


def test_nobody_else_believes_in_triton(answers):
    for answer in answers.values():
        if "v2" in answer:
            assert answer["triton_elsewhere"] == [False, False]


def test_asking_imports_nothing_of_the_runner(answers):
    modules = answers["default"]["modules"]
    assert "vllm.v1.worker.gpu.kunlun.gate" in modules
    assert [m for m in modules if not m.startswith("vllm.v1.worker.gpu.kunlun")] == []
