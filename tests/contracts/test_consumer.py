"""A package that builds on vLLM: what of it breaks, and what is only other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contractkit import Bench
from test_cli import as_json, run

from kunlunfork import errors
from kunlunfork.contracts import consumer
from kunlunfork.contracts.consumer import Break
from kunlunfork.contracts.drift import drift
from kunlunfork.store import Base

BATCH, TABLE, RUNNER = (f"vllm.v1.worker.gpu.{name}" for name in ("input_batch", "block_table", "model_runner"))
CLASS = "class GPUModelRunner(LoRAModelRunnerMixin):\n"
PLUGIN = {
    b"plug/__init__.py": b"from . import runner\n",
    b"plug/runner.py": b"""
from unittest import mock
from vllm.v1.worker.gpu import input_batch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.input_batch import InputBatch, expand_idx_mapping
from .helpers import total

class Runner(GPUModelRunner):
    def sample(self, hidden_states, input_batch, grammar_output):
        total(input_batch)
        return super().sample(hidden_states, input_batch, grammar_output)

    def mine(self): ...

input_batch.post_update = None

def f(a, b, c, d):
    expand_idx_mapping(a, b, c, max_expand_len=d)
    with mock.patch("vllm.v1.worker.gpu.block_table.BlockTables.gather_block_tables"):
        pass
""",
    b"plug/helpers.py": b"def total(batch):\n    return batch.num_reqs\n",
    b"plug/broken.py": b"def f(:\n",
}


def broken(bench: Bench, *edits: tuple[str, str, str]) -> dict[tuple[str, str], Break]:
    made = consumer.extract(PLUGIN, bench.release)
    new = bench.edited(*edits)
    found = drift(made.held, ("0.25.1", bench.release), [("0.25.2", lambda: new)])
    return {(b.kind, b.symbol): b for b in consumer.breaks(found, made)}


def test_its_contracts(bench: Bench) -> None:
    made = consumer.extract(PLUGIN, bench.release)
    found = {str(c): c.roles for c in made.held.contracts}
    assert found[f"{BATCH}:post_update"] == ("rebinds",)
    assert "overrides" in found[f"{RUNNER}:GPUModelRunner.sample"]
    assert found[f"{TABLE}:BlockTables.gather_block_tables"] == ("rebinds",)
    assert "imports" in found[f"{BATCH}:expand_idx_mapping"]
    assert len(made.faults) == 1 and "plug/broken.py" in made.faults[0]
    assert broken(bench) == {}


@pytest.mark.parametrize(
    ("module", "old", "new", "kind", "symbol", "why"),
    [
        (BATCH, "def expand_idx_mapping(", "def expand_indices(", "import", f"{BATCH}:expand_idx_mapping", "indices"),
        (BATCH, "def post_update(", "def post_step(", "renamed", f"{BATCH}:post_update", "post_step"),
        (TABLE, "def gather_block_tables(", "def gather(", "renamed",
         f"{TABLE}:BlockTables.gather_block_tables", "gather"),
        (BATCH, "def expand_idx_mapping(\n", "def expand_idx_mapping(\n    stream,\n", "call",
         f"{BATCH}:expand_idx_mapping", "it wants"),
        (BATCH, "torch.Tensor,\n    max_expand_len: int,", "torch.Tensor,\n    most: int,", "call",
         f"{BATCH}:expand_idx_mapping", "it takes no max_expand_len"),
        (RUNNER, CLASS, f"{CLASS}    def mine(self): ...\n", "members", f"{RUNNER}:GPUModelRunner", "mine"),
    ],
)  # fmt: skip
def test_what_breaks(bench: Bench, module: str, old: str, new: str, kind: str, symbol: str, why: str) -> None:
    found = broken(bench, (module, old, new))
    assert why in found[kind, symbol].why
    assert found[kind, symbol].users


def test_a_keyword_that_upstreams_callers_pass(bench: Bench) -> None:
    """The override of the package does not take what upstream's new release calls it with."""
    call = "self.sample(\n            hidden_states, input_batch, grammar_output"
    head = "        grammar_output: GrammarOutput | None,\n    ) -> tuple[SamplerOutput, torch.Tensor, torch.Tensor]:"
    found = broken(
        bench, (RUNNER, call, f"{call}, eos=1"),
        (RUNNER, head, head.replace("None,", "None, eos: int = 0,")),
    )  # fmt: skip
    one = found["override", f"{RUNNER}:GPUModelRunner.sample"]
    assert "it takes no eos" in one.why and one.users == ("plug/runner.py::Runner.sample",)


def test_what_the_first_release_has_not(bench: Bench) -> None:
    made = consumer.extract({b"p.py": b"from vllm.v1.worker.gpu.input_batch import gone\n"}, bench.release)
    found = drift(made.held, ("0.25.1", bench.release), [("0.25.2", lambda: bench.release)])
    assert [str(c) for c in found.absent] == [f"{BATCH}:gone"] and not consumer.breaks(found, made)


def test_a_body_is_other_and_breaks_nothing(bench: Bench) -> None:
    assert (
        broken(bench, (BATCH, "num_new_sampled_tokens: int = 1,  # excl", "num_new_sampled_tokens: int = 0,  # excl"))
        == {}
    )


def test_the_verb(base: Base, tmp_path: Path) -> None:
    for path, data in PLUGIN.items():
        file = tmp_path / "src" / path.decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (tmp_path / "src" / "vllm").mkdir()
    (tmp_path / "src" / "vllm" / "__init__.py").write_text("")
    empty = tmp_path / "empty"
    empty.mkdir()
    code, body = as_json("drift", "--consumer", empty, "--from", "0.25.1", "--to", "0.25.1", "--offline")
    assert code == 1 and "no Python module" in body["error"]["message"]
    code, body = as_json("drift", "--consumer", tmp_path, "--from", "0.25.1", "--to", "0.25.1", "--offline")
    assert code == 1 and "is not newer" in body["error"]["message"]


def test_what_is_written_and_what_is_printed(bases: dict[str, Base], tmp_path: Path) -> None:
    """--out FILE holds the format that was asked for; --json is one object on stdout beside it."""
    assert {"0.25.1", "0.26.0"} <= set(bases)
    (tmp_path / "one.py").write_text("import os\n")
    args = ("drift", "--consumer", tmp_path, "--from", "0.25.1", "--to", "0.26.0")
    file = tmp_path / "out"
    code, body = as_json(*args, "--out", file)
    assert code == 0 and file.read_text().startswith("vLLM 0.25.1 -> 0.26.0: of 0 contracts")
    assert "nothing in the package uses vLLM" in body["warnings"][0]
    assert "written to" in run(*args, "--format", "json", "--out", file).stdout
    assert json.loads(file.read_text()).items() <= body["result"].items()
    args = ("drift", "--from", "0.25.1", "--to", "0.26.0")
    code, body = as_json(*args, "--format", "html", "--out", file)
    assert code in (errors.OK, errors.CONFLICT) and file.read_bytes().startswith(b"<!DOCTYPE html>")
    assert "written to" in run(*args, "--format", "json", "--out", file).stdout
    assert json.loads(file.read_text())["drifts"] == body["result"]["drifts"]
