"""The numbers of engines: `bench e2e` and `bench host` with real ones, as small as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

SMALL = {"dtype": "float32", "max_num_batched_tokens": 512}


@pytest.fixture(scope="module")
def bench(engines, tmp_path_factory):
    """Runs a verb on the chain model with drafts, and gives the JSON that it prints and writes."""
    work = tmp_path_factory.mktemp("bench")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KUNLUN_", "VLLM_"))}
    env |= {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    def run(verb, *arguments, code=0):
        models, out = engines.models, work / f"{verb}.json"
        words = ["--python", engines.python, "--tree", engines.tree, "--model", models / "chain"]
        words += ["--draft", models / "draft-half", "--tokens", "4", "--loads", "2", "--kv-cache-mib", "64", "--eager"]
        words += ["--llm", json.dumps(SMALL), "--out", out, "--json", *arguments]
        command = [sys.executable, "-m", "kunlunfork", "bench", verb, *map(str, words)]
        done = subprocess.run(command, env=env, cwd=work, text=True, capture_output=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
        answer = json.loads(done.stdout)
        assert answer["ok"] == (code == 0)
        if code == 0:
            assert json.loads(out.read_text()) == answer["result"]
        return answer

    return run


def test_e2e(bench):
    answer = bench(
        "e2e",
        "--engines",
        "upstream-v1,upstream-v2,fork-torch",
        "--rounds",
        "1",
        "--input",
        "16",
        "--output",
        "8",
        "--temperature",
        "0.8",
    )
    rows = {(row["variant"], row["drafts"]): row for row in answer["result"]["rows"]}
    # Upstream's V2 has no drafts without Triton.
    assert "error" in rows["upstream V2", True]
    assert any(warning.startswith("upstream V2, 2 requests") for warning in answer["warnings"])
    for name in (("upstream V1", False), ("fork torch", False), ("fork torch", True)):
        row = rows[name]
        assert row["tokens/s"] > 0 and row["ttft ms"] > 0 and row["tpot p99 ms"] >= row["tpot p95 ms"] > 0
    assert "torch kernels" in rows["fork torch", True]["runs"]
    assert answer["result"]["device"] == "cpu" and answer["result"]["settings"]["output"] == 8


def test_host(bench):
    rows = bench("host", "--engines", "fork-torch")["result"]["rows"]
    assert [row["drafts"] for row in rows] == [False, True]
    for row in rows:
        assert row["us"] and row["a step"]["all"]["aten ops"] > 0


def test_no_engine_starts(bench):
    error = bench("e2e", "--engines", "fork-torch", "--llm", '{"max_model_len": -5}', code=1)["error"]
    assert error["message"] == "no engine starts" and len(error["details"]) == 2
