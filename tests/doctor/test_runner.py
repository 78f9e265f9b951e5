"""Which runner, and why: models and drafts against the real release."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kunlunfork.doctor import model, runner, runnercheck, source, speculative
from kunlunfork.doctor.child import Answer
from kunlunfork.doctor.environment import Asked
from kunlunfork.doctor.runnercheck import Given, Tree
from kunlunfork.errors import ForkError

QWEN: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MOE: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}


def make_model(folder: Path, config: object) -> model.Model:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return model.load(folder)


@pytest.fixture(scope="module")
def fork_source(vllm_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the fork's gate in it."""
    root = tmp_path_factory.mktemp("fork") / "tree"
    shutil.copytree(vllm_source, root)
    file = root / runner.FILE
    text = file.read_text()
    ours = "from vllm.v1.worker.gpu.kunlun.gate import HAS_TRITON"
    assert text.count("from vllm.triton_utils import HAS_TRITON") == 1
    file.write_text(text.replace("from vllm.triton_utils import HAS_TRITON", ours))
    return root


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (QWEN, {"is_moe": False, "is_hybrid": False, "is_attention_free": False, "runner_type": "generate"}),
        (MOE, {"is_moe": True, "is_hybrid": False}),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, {"is_moe": True}),
        # What config.json leaves out has a default of transformers, which is not here.
        ({"architectures": ["Qwen3MoeForCausalLM"]}, {"is_moe": None}),
        ({"architectures": ["JambaForCausalLM"], "num_experts": 16}, {"is_hybrid": True, "is_moe": True}),
        ({"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"] * 2}, {"is_hybrid": False}),
        ({"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["mamba"]}, {"is_hybrid": True}),
        ({"architectures": ["MambaForCausalLM"]}, {"is_attention_free": True}),
        ({"architectures": ["Qwen3ForCausalLM"], "canvas_length": 32}, {"is_diffusion": True}),
        ({"architectures": ["NobodyKnowsForCausalLM"]}, {"is_hybrid": None, "runner_type": None, "is_moe": None}),
        ({"architectures": ["BertModel"]}, {"runner_type": None}),
        ({}, {"is_hybrid": None, "is_moe": None}),
        ({"architectures": "text"}, {"is_hybrid": None}),
        ({"text_config": {"num_experts": 4}, "architectures": ["Qwen3ForCausalLM"]}, {"is_moe": True}),
        ({"text_config": 7, "block_configs": [{}], "architectures": ["Qwen3ForCausalLM"]}, {"is_moe": None}),
    ],
)
def test_what_is_known_of_a_model(vllm_source: Path, tmp_path: Path, config: Any, facts: dict[str, Any]) -> None:
    found = model.facts(make_model(tmp_path / "m", config), vllm_source)
    assert {name: found.get(f"self.model_config.{name}") for name in facts} == facts


def test_a_pooler_beside_it_leaves_the_kind_open(vllm_source: Path, tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", QWEN)
    (made.folder / "modules.json").write_text("[]")
    assert "self.model_config.runner_type" not in model.facts(made, vllm_source)


def test_a_model_of_a_cache_is_a_folder_of_links(tmp_path: Path) -> None:
    made = make_model(tmp_path / "blobs", QWEN)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/config.json").symlink_to(made.folder / "config.json")
    assert model.load(tmp_path / "snapshot").architectures == ("Qwen3ForCausalLM",)


@pytest.mark.parametrize("kind", ["pipe", "folder", "sparse", "loop"])
def test_what_does_not_end_is_not_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(ForkError):
        model.load(tmp_path)
    (tmp_path / "vllm/config").mkdir(parents=True)
    file.rename(tmp_path / runner.FILE)
    assert runner.decide(tmp_path, {}).runner == "unknown"


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b"\xff", b"[" * 100000])
def test_no_model(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ForkError) as error:
        model.load(tmp_path)
    assert error.value.fix


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"method": "dspark"}, "dspark"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"model": "deepseek-ai/DSpark_qwen3_8b_block7"}, "dspark"),
        ({"model": "x/EAGLE3-LLaMA3"}, "eagle3"),
        ({"model": "x/EAGLE-LLaMA3"}, "eagle"),
        ({"model": "x/unnamed"}, None),
        ({"model": 7}, None),
        ({}, None),
        ({"method": ["dspark"]}, None),
    ],
)
def test_the_method(vllm_source: Path, config: Any, method: str | None) -> None:
    assert speculative.method_of(config, source.parse(vllm_source, "vllm/config/speculative.py")) == method
    assert speculative.facts(config, vllm_source).get("self.speculative_config.method") == method


@pytest.mark.parametrize("text", ["", "{", "[]", "dspark", "null", "[" * 100000])
def test_no_configuration(text: str) -> None:
    with pytest.raises(ForkError) as error:
        speculative.parse(text)
    assert error.value.exit_code == 2


def judge(
    root: Path, *, config: Any = None, spec: Any = None, asked: Asked | None = None, triton: bool | None = False,
    forked: bool = False, whole: bool = True, plugin: bool = False, engine: Any = None, logits: bool = False,
    folder: Path | None = None,
):  # fmt: skip
    given = Given(None if config is None else make_model(folder or root / "model", config), spec)
    tree = Tree(root, forked, whole, triton, logits, plugin)
    answer = None if engine is None else Answer({"config": engine})
    return runnercheck.check(tree, given, asked or Asked("auto", None), answer)


DSPARK = {"method": "dspark"}
NGRAM = {"method": "ngram"}
TRITON = "Triton"


@pytest.mark.parametrize(
    ("arguments", "name", "state", "why"),
    [
        ({"config": QWEN, "triton": True}, "V2", "ok", "upstream's default"),
        ({"config": QWEN}, "V1", "ok", "no Triton"),
        ({"config": QWEN, "triton": None}, "undecided", "note", "not HAS_TRITON"),
        ({"config": QWEN, "spec": NGRAM, "triton": True}, "V1", "ok", "ngram/ngram_gpu"),
        ({"config": MOE, "triton": True}, "V1", "ok", "experts"),
        ({"config": {"architectures": ["JambaForCausalLM"]}, "triton": True}, "V1", "ok", "hybrid"),
        ({"config": {"architectures": ["MambaForCausalLM"]}, "triton": True}, "V1", "ok", "without attention"),
        ({"config": {**QWEN, "canvas_length": 3}, "triton": True}, "V2", "ok", "diffusion"),
        ({"config": QWEN, "spec": DSPARK, "triton": True}, "V2", "ok", "dspark is only in V2"),
        ({"config": QWEN, "spec": DSPARK}, "refused", "bad", "requires Triton"),
        ({"spec": DSPARK}, "refused", "bad", "requires Triton"),
        ({"asked": Asked("auto", True)}, "refused", "bad", "=1 asks for it; but"),
        ({"asked": Asked("auto", True), "triton": True}, "V2", "ok", "=1 asks for it"),
        ({"asked": Asked("auto", False)}, "V1", "ok", "=0 asks for it"),
        ({"asked": Asked("auto", False), "spec": DSPARK}, "V1", "bad", "only in V2"),
        ({"asked": Asked("auto", True), "spec": NGRAM, "triton": True}, "refused", "bad", "ngram/ngram_gpu"),
        ({"asked": Asked("auto", None, unreadable=True), "config": QWEN}, "refused", "bad", "neither 0 nor 1"),
        ({"config": QWEN, "logits": True, "triton": True}, "V1", "ok", "custom logits processors"),
        ({}, "undecided", "note", "without a model"),
        ({"config": {"architectures": ["X"]}, "triton": True}, "undecided", "note", "it depends on"),
        ({"config": QWEN, "spec": {"model": "x"}, "triton": True}, "undecided", "note", "`method`"),
        ({"spec": {"model": "x"}, "triton": True}, "undecided", "note", "it depends on"),
        ({"spec": {"model": "x"}, "asked": Asked("auto", True)}, "refused", "bad", "requires Triton"),
    ],
)
def test_upstream(vllm_source: Path, tmp_path: Path, arguments: Any, name: str, state: str, why: str) -> None:
    verdict, line = judge(vllm_source, folder=tmp_path / "m", **arguments)
    assert (verdict.runner, line.state) == (name, state), line
    assert why in line.found
    if state == "bad":
        assert line.fix
    if verdict.where is not None:
        number = int(verdict.where.rpartition(":")[2])
        lines = (vllm_source / runner.FILE).read_text().splitlines()
        assert lines[number - 1].lstrip().startswith(("if", "return", "raise")), lines[number - 1]


@pytest.mark.parametrize(
    ("arguments", "name", "state"),
    [
        ({}, "V2", "ok"),
        ({"spec": DSPARK}, "V2", "ok"),
        ({"asked": Asked("torch", None), "spec": DSPARK}, "V2", "ok"),
        ({"asked": Asked("upstream", None)}, "V1", "ok"),
        ({"asked": Asked("upstream", None), "spec": DSPARK}, "refused", "bad"),
        ({"asked": Asked("upstream", None), "triton": True}, "V2", "ok"),
        ({"asked": Asked("fused", None)}, "V1", "ok"),
        ({"asked": Asked("vendor", None), "spec": DSPARK}, "refused", "bad"),
        ({"asked": Asked("auto", None, refused=True)}, "refused", "bad"),
        ({"whole": False}, "undecided", "note"),
        ({"whole": False, "triton": True}, "V2", "ok"),
        ({"spec": DSPARK, "plugin": True}, "V2", "note"),
        ({"triton": None}, "V2", "ok"),
    ],
)
def test_a_fork_tree(fork_source: Path, tmp_path: Path, arguments: Any, name: str, state: str) -> None:
    verdict, line = judge(fork_source, folder=tmp_path / "m", config=QWEN, forked=True, **arguments)
    assert (verdict.runner, line.state) == (name, state), line
    assert runner.triton_of(fork_source) == "fork"


@pytest.mark.parametrize(
    ("arguments", "engine", "state", "text"),
    [
        ({"config": QWEN, "triton": True}, {"v2": True}, "ok", "confirmed by vLLM"),
        ({"config": QWEN, "triton": True}, {"v2": False}, "note", "V1, says vLLM; the tree was read as V2"),
        ({"config": QWEN}, {"v2": False}, "ok", "confirmed by vLLM"),
        ({"config": {"architectures": ["X"]}, "triton": True}, {"v2": True}, "ok", "V2, says vLLM (not decided"),
        ({"config": QWEN, "spec": DSPARK}, {"error": "no"}, "bad", "confirmed by vLLM"),
        ({"config": QWEN, "triton": True}, {"error": "no model"}, "bad", "no model; the tree was read as V2"),
        ({"config": QWEN, "spec": DSPARK}, {"v2": True}, "note", "V2, says vLLM; the tree was read as refused"),
        ({"config": QWEN, "spec": DSPARK, "triton": True, "plugin": True}, {"v2": True}, "ok", "confirmed by vLLM"),
    ],
)
def test_vllm_is_asked(vllm_source: Path, tmp_path: Path, arguments: Any, engine: Any, state: str, text: str) -> None:
    line = judge(vllm_source, folder=tmp_path / "m", engine=engine, **arguments)[1]
    assert (line.state, text in line.found) == (state, True), line


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (None, "cannot be read"),
        (("def use_v2_model_runner", "def other"), "it has no use_v2_model_runner"),
        (("class VllmConfig", "class Other"), "it has no class VllmConfig"),
        (("use_v2_model_runner = envs.", "self.x = envs."), "a statement of a kind"),
        (("def use_v2_model_runner", "def use_v2_model_runner("), "does not parse"),
    ],
)
def test_another_vllm(vllm_source: Path, tmp_path: Path, change: tuple[str, str] | None, text: str) -> None:
    root = tmp_path / "tree"
    (root / "vllm/config").mkdir(parents=True)
    if change is not None:
        (root / runner.FILE).write_text((vllm_source / runner.FILE).read_text().replace(*change))
    verdict, line = judge(root, config=QWEN, triton=True)
    assert (verdict.runner, line.state) == ("unknown", "note")
    assert text in line.found


def test_the_features_are_data(vllm_source: Path) -> None:
    verdict = judge(vllm_source, spec={"method": "eagle", "parallel_drafting": True}, asked=Asked("auto", True))[0]
    certain = [f for f in runnercheck.as_json(verdict)["lacks"] if f["certain"]]
    assert [f["text"] for f in certain] == ["parallel drafting for EAGLE speculative decoding"]
