"""What engines are measured with, told from the command line; that they run is in tests/engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunlunfork.bench import e2e, enginerun, engines
from kunlunfork.bench.enginerun import Setup
from kunlunfork.bench.engines import Places, Variant
from kunlunfork.commands.bench import command
from kunlunfork.errors import ForkError


def _setup(**changes: Any) -> Setup:
    given: dict[str, Any] = {
        "names": enginerun.named(("upstream-v1", "upstream-v2", "fork-torch")), "loads": (2, 4), "rounds": 2,
        "input": 16, "output": 32, "tokens": 3, "eager": False, "kv_cache_mib": 64, "extra": {},
    }  # fmt: skip
    return Setup(**{**given, **changes})


def _places(tmp_path: Path, draft: bool = True) -> Places:
    for name in ("model", "draft"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text('{"vocab_size": 500}')
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no vLLM here >&2\nexit 3\n")
    python.chmod(0o755)
    return Places(python, (), (tmp_path,), tmp_path / "model", tmp_path / "draft" if draft else None)


def test_arguments_of_the_engines() -> None:
    setup = _setup()
    plain, drafts = setup.llm(False), setup.llm(True)
    assert plain["max_num_seqs"] == 4 and plain["kv_cache_memory_bytes"] == 64 << 20
    # Every step of 1 to 4 requests has a graph, with 4 tokens a request where there are 3 drafts.
    assert max(plain["compilation_config"]["cudagraph_capture_sizes"]) == 4
    assert max(drafts["compilation_config"]["cudagraph_capture_sizes"]) == 16
    assert "enforce_eager" not in plain
    eager = _setup(eager=True, extra={"dtype": "float32", "seed": 5}).llm(True)
    assert eager["enforce_eager"] and "compilation_config" not in eager
    assert (eager["dtype"], eager["seed"]) == ("float32", 5)


@pytest.mark.parametrize(("output", "tokens"), [(32, 3), (4000, 3), (32, 15)])
def test_the_longest_request_fits(output: int, tokens: int) -> None:
    setup = _setup(output=output, tokens=tokens)
    counted = 5 + enginerun.HOST_STEPS + enginerun.HOST_PROFILED + 8
    assert setup.longest() > max(setup.input + output, enginerun.HOST_INPUT + counted * (1 + tokens) + 16) + tokens
    assert setup.llm(True)["max_num_batched_tokens"] >= setup.longest()


def test_engines_with_and_without_drafts(tmp_path: Path) -> None:
    def said(found: list[Variant]) -> list[tuple[str, bool]]:
        return [(v.name, v.drafts) for v in found]

    plain = [(engines.UPSTREAM_V1, False), (engines.UPSTREAM_V2, False), ("fork torch", False)]
    assert said(enginerun.wanted(_setup(), _places(tmp_path, draft=False))) == plain
    both = said(enginerun.wanted(_setup(), _places(tmp_path)))
    assert both == [*plain, (engines.UPSTREAM_V2, True), ("fork torch", True)]


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"vocab_size": "many"}', '{"vocab_size": 0}'])
def test_a_model_without_a_vocabulary(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ForkError):
        enginerun.vocabulary(tmp_path)


def test_no_engine_starts(tmp_path: Path) -> None:
    nothing = enginerun.running(_setup(), _places(tmp_path), {}, lambda text: None)
    with pytest.raises(ForkError, match="no engine starts") as caught, nothing:
        raise AssertionError("nothing runs")
    assert any("no vLLM here" in line for line in caught.value.details)


def test_an_engine_that_failed_is_a_row(tmp_path: Path) -> None:
    variant = enginerun.wanted(_setup(), _places(tmp_path))[0]
    engine = engines.Engine(variant, tmp_path / "log", None, error="exit code 3")
    (row,) = e2e.measure([engine], (2,), 1, 16, 16, lambda text: None)
    assert row["error"] == "exit code 3" and e2e.table([row])[0][3:5] == ("failed", "exit code 3")


class _Sampling:
    """An engine that says what its variant would."""

    error = None

    def __init__(self, name: str, drafts: bool, said: str) -> None:
        self.about = {"runner": "a runner"}
        self.variant = Variant(name, drafts, (), {})
        self.said = said
        self.asked: list[dict[str, Any]] = []

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(question)
        return {"tokens": 4, "seconds": 1.0, "ttft": [0.1], "tpot": [0.1], "wrong": None, "said": self.said}


def test_sampled_tokens_are_compared_with_upstreams() -> None:
    given = [("upstream V1", False, "x"), ("upstream V2", False, "a"), ("fork torch", False, "a"),
             ("upstream V2", True, "b"), ("fork torch", True, "a")]  # fmt: skip
    sampling: list[Any] = [_Sampling(*about) for about in given]
    rows = e2e.measure(sampling, (2,), 2, 16, 16, lambda text: None, temperature=0.8)
    assert [row["same"] for row in rows] == [False, True, True, True, False]
    assert [question.get("temperature") for question in sampling[0].asked] == [0.8] * 3
    told = {(row[0], row[1]): row[-1] for row in e2e.table(rows)}
    assert told["fork torch", "-"] == "same" and told["fork torch", "dspark"] == "other"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--loads", "8,x"), "no numbers of requests"),
        (("--loads", "0"), "no numbers of requests"),
        (("--loads", ","), "no numbers of requests"),
        (("--llm", "[1]"), "no JSON object"),
        (("--engines", "v2,fork-torch"), "no such engine: v2"),
        (("--python", "python"), "go together"),
        (("--tree", "tree"), "go together"),
        ((), "no model that can be measured"),
    ],
)
@pytest.mark.parametrize("verb", ["e2e", "host"])
def test_refused_before_anything_starts(
    verb: str,
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def nothing(*_: Any, **__: Any) -> Callable[..., Any]:
        raise AssertionError("an engine environment was asked for")

    monkeypatch.setattr("kunlunfork.matrix.environment.ensure", nothing)
    model = tmp_path / "model"
    words = [verb, "--model", str(model), *arguments, "--json"]
    code = command.main(words, prog_name="kunlunfork bench", standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["ok"]) == (1, False) and said in answer["error"]["message"]
