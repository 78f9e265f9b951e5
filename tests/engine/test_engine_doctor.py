"""What doctor reads from a tree against what its vLLM says, and Triton that is there but does not launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jobs
import pytest

TRITON = os.environ.get("KUNLUNFORK_ENGINE_TRITON")
UPSTREAM = {"KUNLUN_KERNELS": "upstream"}
SMALL = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 256, "torch_dtype": "float32",
}  # fmt: skip
# No weights: none are read.
OTHERS: dict[str, dict[str, Any]] = {
    "moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "moe with V2": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4},
    "attention free": {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "state_size": 16},
    "pooling": {"architectures": ["Qwen3ForSequenceClassification"], "model_type": "qwen3"},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
}  # fmt: skip

# (fork?, model, draft?, environment) -> what doctor reads and vLLM confirms.
CASES = {
    "fork": ((True, "chain", False, {}), "V2"),
    "fork, dspark": ((True, "chain", True, {}), "V2"),
    "fork, V1 asked for": ((True, "chain", False, jobs.V1), "V1"),
    "fork, V2 asked for": ((True, "chain", False, jobs.V2), "V2"),
    "fork, upstream's kernels": ((True, "chain", False, UPSTREAM), "V1"),
    "fork, upstream's kernels, dspark": ((True, "chain", True, UPSTREAM), "refused"),
    "fork, a misspelt switch": ((True, "chain", False, {"KUNLUN_HOSTVECT": "0"}), "refused"),
    "upstream": ((False, "chain", False, {}), "V1"),
    "upstream, dspark": ((False, "chain", True, {}), "refused"),
    "upstream, V2 asked for": ((False, "chain", False, jobs.V2), "refused"),
    **{name: ((True, name, False, {}), "V2" if name in ("moe with V2", "llama") else "V1") for name in OTHERS},
}


def examine(
    python: Path, *args: str | Path, env: dict[str, str], cwd: Path, triton: str | None = None
) -> tuple[int, dict[str, Any]]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KUNLUN_", "VLLM_"))}
    path = [str(Path(__file__).parents[2] / "scripts"), *filter(None, [triton])]
    environ = {**clean, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(
        [sys.executable, "-m", "kunlunfork", "doctor", "--python", str(python), *map(str, args), "--json"],
        env=environ, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    body = json.loads(done.stdout)
    assert body["result"] is not None, done.stderr
    return done.returncode, body["result"]


def line(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [c for c in result["checks"] if c["name"] == name]
    return found


@pytest.fixture(scope="module")
def folders(engines, tmp_path_factory) -> dict[str, Path]:
    found = {"chain": engines.models / "chain"}
    for name, config in OTHERS.items():
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps({**SMALL, **config}))
        found[name] = folder
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_runner_is_read_as_vllm_chooses_it(engines, folders, tmp_path, case: str) -> None:
    (forked, model, draft, env), runner = CASES[case]
    args = [*([engines.tree] if forked else []), "--model", folders[model], "--run"]
    if draft:
        spec = {"method": "dspark", "model": str(engines.models / "draft-exact"), "num_speculative_tokens": 4}
        args += ["--speculative-config", json.dumps(spec)]
    code, result = examine(engines.python, *args, env=env, cwd=tmp_path)
    said = line(result, "runner")
    assert line(result, "run")["state"] == "ok"
    # What doctor cannot read it says; what it reads is right.
    assert result["runner"]["runner"] in (runner, "undecided"), said
    if result["runner"]["runner"] == runner:
        assert "confirmed by vLLM" in said["found"]
    else:
        assert f"{runner}, says vLLM" in said["found"]
        assert case in ("mixtral", "attention free", "pooling")
    assert code == (1 if "bad" in {c["state"] for c in result["checks"]} else 0)


def test_triton_that_does_not_launch(engines, tmp_path) -> None:
    if not TRITON:
        pytest.skip("no Triton beside the environment")
    code, result = examine(engines.python, engines.tree, env={}, cwd=tmp_path, triton=TRITON)
    assert code == 0
    assert line(result, "launch")["state"] == "note"
    assert "HAS_TRITON=False" in line(result, "triton")["found"]


def test_vllm_on_the_cpu_sees_its_memory(engines, tmp_path) -> None:
    result = examine(engines.python, engines.tree, "--run", env={}, cwd=tmp_path)[1]
    assert line(result, "UVA")["state"] == "ok"
