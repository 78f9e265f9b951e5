"""Methods read without being run: against Python itself where that can run them."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kunlunfork.doctor.reader import MAX_PATHS, Outcome, Reader, Unreadable
from kunlunfork.doctor.values import PRESENT, Gathered, Value

METHODS = (
    "use_v2_model_runner",
    "_is_default_v2_model_runner_model",
    "_get_v2_model_runner_unsupported_features",
    "_validate_v2_model_runner",
)


def reader(body: str, facts: dict[str, Value] | None = None, top: str = "") -> Reader:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return Reader(f"{top}\nclass C:\n    def f(self):\n{lines}".encode(), "C", facts or {})


def ends(found: tuple[Outcome, ...]) -> set[Any]:
    return {o.value if o.kind == "return" else ("raise", o.value) for o in found}


# The same choices, made by Python.


def _options(rng: random.Random) -> dict[str, Any]:
    spec = rng.choice([None, "dspark", "eagle", "eagle3", "mtp", "dflash", "ngram", "ngram_gpu", "medusa"])
    model = {
        "runner_type": rng.choice(["generate", "generate", "generate", "pooling"]),
        "is_hybrid": rng.random() < 0.2,
        "is_attention_free": rng.random() < 0.1,
        "is_moe": rng.random() < 0.4,
        "is_diffusion": rng.random() < 0.1,
        "architectures": (rng.choice(["Qwen3ForCausalLM", "Qwen2MoeForCausalLM", "DeepseekV2ForCausalLM"]),),
        "enable_return_routed_experts": rng.random() < 0.01,
        "logits_processors": rng.choice([None] * 20 + [("x",)]),
        "enable_prompt_embeds": rng.random() < 0.01,
        "logprobs_mode": rng.choice(["raw_logprobs"] * 20 + ["raw_logits"]),
    }
    return {
        "env": rng.choice([None, None, True, False]),
        "triton": rng.random() < 0.6,
        "self": {
            "speculative_config": spec
            and {"method": spec, "parallel_drafting": spec in ("dflash", "dspark") or rng.random() < 0.1},
            "model_config": rng.choice([None, *[model] * 9]),
            "parallel_config": {
                "prefill_context_parallel_size": rng.choice([1] * 30 + [2]),
                "tensor_parallel_size": rng.choice([1, 4]),
                "pipeline_parallel_size": rng.choice([1, 2]),
                "distributed_executor_backend": rng.choice([None, "mp", "mp", "external_launcher"]),
                "enable_dbo": rng.random() < 0.01,
                "enable_elastic_ep": rng.random() < 0.01,
            },
            "compilation_config": {
                "mode": rng.choice(["stock"] + ["compile"] * 30),
                "pass_config": {"enable_sp": rng.random() < 0.1},
            },
            "cache_config": {"kv_sharing_fast_prefill": rng.random() < 0.01},
            "ec_transfer_config": None,
            "reasoning_config": None,
        },
    }


def _flat(value: Any, name: str) -> dict[str, Value]:
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Value] = {} if name == "self" else {name: PRESENT}
    for key, inner in value.items():
        found.update(_flat(inner, f"{name}.{key}"))
    return found


def _object(value: Any) -> Any:
    return SimpleNamespace(**{k: _object(v) for k, v in value.items()}) if isinstance(value, dict) else value


def _python(module: ast.Module, options: dict[str, Any]) -> tuple[bool, str | None]:
    """(what the property returns, the refusal), by running upstream's methods on an object of the test's own."""
    (config,) = [n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "VllmConfig"]
    methods = [n for n in config.body if isinstance(n, ast.FunctionDef) and n.name in METHODS]
    body = [ast.ClassDef("VllmConfig", [], [], methods, [])]
    constants = [n for n in module.body if isinstance(n, ast.Assign) and "DEFAULT_V2" in ast.unparse(n.targets[0])]
    tree = ast.fix_missing_locations(ast.Module([*constants, *body], []))
    names: dict[str, Any] = {
        "envs": SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=options["env"]),
        "HAS_TRITON": options["triton"],
        "logger": SimpleNamespace(warning_once=lambda *_: None),
        "CompilationMode": SimpleNamespace(STOCK_TORCH_COMPILE="stock"),
    }
    exec(compile(tree, "upstream", "exec"), names)
    made = names["VllmConfig"]()
    for key, value in options["self"].items():
        setattr(made, key, _object(value))
    try:
        made._validate_v2_model_runner()
    except ValueError as e:
        return made.use_v2_model_runner, str(e)
    return made.use_v2_model_runner, None


@pytest.mark.parametrize("seed", range(4))
def test_the_real_choice_is_read_as_python_makes_it(vllm_source: Path, seed: int) -> None:
    source = (vllm_source / "vllm/config/vllm.py").read_bytes()
    module, rng = ast.parse(source), random.Random(seed)
    seen = set()
    for _ in range(60):
        options = _options(rng)
        facts = _flat(options["self"], "self") | {
            "envs.VLLM_USE_V2_MODEL_RUNNER": options["env"],
            "HAS_TRITON": options["triton"],
            "CompilationMode.STOCK_TORCH_COMPILE": "stock",
            "entry_points(group='vllm.logits_processors')": False,
        }
        read = Reader(source, "VllmConfig", facts)
        (choice,) = read.outcomes("use_v2_model_runner")
        (validation,) = read.outcomes("_validate_v2_model_runner")
        assert not choice.assumed
        refusal = validation.value if validation.kind == "raise" else None
        assert (choice.value, refusal) == _python(module, options), options
        seen.add((choice.value, refusal is None))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_with_no_facts_every_way_is_taken(vllm_source: Path) -> None:
    read = Reader((vllm_source / "vllm/config/vllm.py").read_bytes(), "VllmConfig", {})
    choices = read.outcomes("use_v2_model_runner")
    assert {True, False} < {c.value for c in choices if isinstance(c.value, bool)} | {None}
    (features, *_) = [o.value for o in read.outcomes("_get_v2_model_runner_unsupported_features")]
    assert isinstance(features, Gathered)
    assert not any(f.certain for f in features.items)
    assert {"dual batch overlap", "prompt embeds", "EAGLE3 with pipeline parallelism"} <= {
        f.text for f in features.items
    }


# Expressions, each over known and unknown operands: what is known must be what Python says.

EXPRESSIONS = (
    "{a} and {b}", "{a} or {b}", "not {a}", "not ({a} and {b})", "{a} is None", "{a} is not None", "{a} == {b}",
    "{a} != {b}", "{a} in (1, 'x', None)", "{a} not in (1, 'x')", "{a} > 1", "{a} <= {b}", "bool({a})",
    "1 if {a} else 2", "({a} or {b}) and {b}", "{a} and {b} or not {b}", "any(i == {a} for i in (1, 2))",
    "getattr(self, 'a', 3) == 1", "f'x{a}y' == 'x1y'", "{a} is {b}",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_what_python_says_or_not_known(expression: str) -> None:
    values: tuple[Any, ...] = (None, True, False, 0, 1, 2, "x", "")
    text = expression.replace("f'x{a}y'", "f'x{self.a}y'").replace("{a}", "self.a").replace("{b}", "self.b")
    decided = 0
    for known in ({"a", "b"}, {"a"}, {"b"}, set()):
        for a in values:
            for b in values:
                facts: dict[str, Value] = {f"self.{n}": v for n, v in (("a", a), ("b", b)) if n in known}
                found = reader(f"if {text}:\n    return 'yes'\nreturn 'no'", facts).outcomes("f")
                try:
                    truth = "yes" if eval(text, {"self": SimpleNamespace(a=a, b=b)}) else "no"
                except TypeError:
                    continue
                assert truth in {o.value for o in found}, (text, facts)
                decided += len(found) == 1
                if known == {"a", "b"} and "is self.b" not in text:
                    assert len(found) == 1, (text, facts)
    assert decided


def test_something_that_is_there_is_not_none_and_true() -> None:
    facts: dict[str, Value] = {"self.c": PRESENT}
    body = "c = self.c\nif c is None:\n    return 1\nif not c:\n    return 2\nif c.x:\n    return 3\nreturn 4"
    assert ends(reader(body, facts).outcomes("f")) == {3, 4}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return", {None}),
        ("pass", {None}),
        ("'doc'\nlogger.info('x')\nreturn 1", {1}),
        ("raise ValueError('no ' + 'x')", {("raise", "ValueError('no ' + 'x')")}),
        ("raise ValueError(f'no {self.a} and {1}')", {("raise", "no {self.a} and 1")}),
        ("if self.a:\n    raise ValueError('x')\nelif self.b:\n    return 1", {("raise", "x"), 1, None}),
        ("x = 1\nif self.a:\n    x = 2\nreturn x", {1, 2}),
        ("x: int = 1\nreturn x", {1}),
        ("return CONSTANT", {("a", "b")}),
        ("if 'a' in CONSTANT:\n    return 1", {1}),
        ("return self.g()", {7}),
        ("return self.p", {8}),
        ("import os\nfrom a import b\nreturn 1", {1}),
    ],
)
def test_statements(body: str, found: set[Any]) -> None:
    more = "\n    def g(self):\n        return 7\n    @property\n    def p(self):\n        return 8\n"
    text = "".join(f"        {line}\n" for line in body.splitlines())
    source = f"CONSTANT = frozenset({{'b', 'a'}})\nclass C:\n    def f(self):\n{text}{more}"
    assert ends(Reader(source.encode(), "C", {}).outcomes("f")) == found


@pytest.mark.parametrize(
    "body",
    [
        "for x in self.a:\n    return x",
        "while True:\n    return 1",
        "try:\n    return 1\nexcept ValueError:\n    return 2",
        "with self.a:\n    return 1",
        "self.x = 1\nreturn 1",
        "x += 1\nreturn 1",
        "a, b = 1, 2\nreturn a",
        "self.other()\nreturn 1",
        "unknown()\nreturn 1",
        "return self.f()",
        "match self.a:\n    case 1:\n        return 1",
        "del self.a",
        "global z\nreturn 1",
        "\n".join(f"if self.a{i}:\n    x = {i}" for i in range(MAX_PATHS)),
    ],
)
def test_what_is_not_understood_is_said_and_not_guessed(body: str) -> None:
    with pytest.raises(Unreadable):
        reader(body).outcomes("f")


@pytest.mark.parametrize(
    "source", [b"", b"class D: pass", b"class C(", b"\xff\xfe", b"class C:\n  x = " + b"(" * 5000, b"\0"]
)
def test_a_module_that_is_no_such_module(source: bytes) -> None:
    with pytest.raises(Unreadable):
        Reader(source, "C", {}).outcomes("f")


def test_what_may_be_gathered_counts_as_not_asked_for() -> None:
    body = "u = []\nif self.a:\n    u.append('A')\nif self.b > 1:\n    u.append(f'B {self.b}')\n"
    body += "if u:\n    return u\nreturn 0"
    assert ends(reader(body).outcomes("f")) == {0}
    ((end),) = reader(body, {"self.b": 2}).outcomes("f")
    assert isinstance(end.value, Gathered)
    assert [(f.text, f.certain, f.condition) for f in end.value.items] == [("A", False, "self.a"), ("B 2", True, "")]


def test_imported() -> None:
    read = Reader(b"from a.b import c as d, e\nclass C: pass", "C", {})
    assert [read.imported(n) for n in ("d", "e", "c")] == ["a.b", "a.b", None]
