"""Two ranks with tensor parallelism: spawned workers bind, decide and compute as one process does."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import jobs
import pytest
from e2e import chain
from test_engine_drafts import counted

RANKS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # For the question that every rank is asked.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}
TWO = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def _two(engine):
    return {
        **engine,
        "ranks": True,
        "log_drafts": False,
        "llm": {**engine["llm"], **TWO},
        "env": {**engine["env"], **RANKS},
    }


@pytest.fixture(scope="module")
def v1(engines):
    return engines.run("plain-v1", jobs.plain(jobs.V1))


@pytest.fixture(scope="module")
def two(engines):
    (dense,) = [engine for engine in jobs.plain(jobs.V2) if engine["name"] == "dense"]
    greedy = {**dense, "calls": [call for call in dense["calls"] if call["name"] in ("greedy", "penalties")]}
    (half,) = jobs.speculative({}, ["half"])
    return engines.run("two-ranks", [_two(greedy), _two(half)])


@pytest.mark.parametrize("call", ["greedy", "penalties"])
def test_two_ranks_say_what_one_says(v1, two, call):
    assert two["dense"]["calls"][call]["tokens"] == v1["dense"]["calls"][call]["tokens"]


def test_acceptance_is_that_of_the_construction(two):
    call = two["half"]["calls"]["greedy"]
    assert call["tokens"] == [chain.continuation(prompt, 32) for prompt in jobs.EIGHT]
    expected = asdict(chain.acceptance(jobs.EIGHT, "half", length=32, steps=jobs.STEPS))
    assert counted(call) == {**expected, "by_position": list(expected["by_position"])}


@pytest.mark.parametrize("engine", ["dense", "half"])
def test_every_rank_runs_the_forks_kernels(two, engine):
    assert two[engine]["plans"] == ["CPUModelRunnerV2: torch kernels (auto: vLLM found no Triton)"] * 2


def test_why_no_pipeline_runs_on_a_cpu(engines, tmp_path):
    """Upstream's limit, with or without the fork: once this fails, PP=2 can be tested here."""
    env = {**os.environ, "PYTHONPATH": str(engines.tree), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [engines.python, Path(__file__).with_name("pplimit.py"), tmp_path]
    done = subprocess.run(command, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["receive"] == "AttributeError: '_StreamPlaceholder' object has no attribute 'record_event'"
    assert said["wait"] == "AttributeError: '_StreamPlaceholder' object has no attribute 'wait_event'"
    assert said["record_stream"] != "works"
