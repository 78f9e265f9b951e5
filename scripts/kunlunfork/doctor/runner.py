"""Which model runner a configuration gets, and why: read from `vllm/config/vllm.py` of the tree itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kunlunfork.doctor import source
from kunlunfork.doctor.reader import Outcome, Reader, Unreadable
from kunlunfork.doctor.values import Feature, Gathered, Value

FILE = "vllm/config/vllm.py"
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
FACT = f"envs.{VARIABLE}"
HAS_TRITON = "HAS_TRITON"

_CHOICE = "use_v2_model_runner"
_DEFAULT = "_is_default_v2_model_runner_model"
_FEATURES = "_get_v2_model_runner_unsupported_features"
_VALIDATION = "_validate_v2_model_runner"

Name = Literal["V1", "V2", "refused", "undecided", "unknown"]

# What upstream's tests mean, by a part of their text. The first that fits counts.
_MEANINGS = (
    ("'dspark'", "method dspark is only in V2"),
    ("is_diffusion", "diffusion models are only in V2"),
    ("HAS_TRITON", "vLLM is told that there is no Triton"),
    ("runner_type", "it is not a model that generates"),
    ("is_hybrid", "it is a hybrid model (attention and state space)"),
    ("is_attention_free", "it is a model without attention"),
    ("model_config is None", "no model is named"),
    ("is_moe", "it has experts, and its architecture is not one that gets V2 by default"),
)


@dataclass(frozen=True)
class Verdict:
    """What a tree would choose.

    `where` is the line that decides; `depends` says, for an undecided one, what leads where; `lacks` are the
    features that V2 does not have, of which those that are `certain` are asked for.
    """

    runner: Name
    why: str
    where: str | None = None
    depends: tuple[str, ...] = ()
    lacks: tuple[Feature, ...] = ()


def triton_of(root: Path) -> Literal["upstream", "fork", "unknown"]:
    """Whose HAS_TRITON decides in a tree."""
    data = source.read(root, FILE)
    try:
        module = Reader(data or b"", "VllmConfig", {}).imported(HAS_TRITON)
    except Unreadable:
        return "unknown"
    if module == "vllm.triton_utils":
        return "upstream"
    return "fork" if module == "vllm.v1.worker.gpu.kunlun.gate" else "unknown"


def decide(root: Path, facts: Mapping[str, Value]) -> Verdict:
    """The runner of a configuration whose `facts` are known (see `Reader`)."""
    data = source.read(root, FILE)
    if data is None:
        return Verdict("unknown", f"{FILE} cannot be read")
    try:
        reader = Reader(data, "VllmConfig", facts)
        choices = reader.outcomes(_CHOICE)
        validation = reader.outcomes(_VALIDATION) if reader.has(_VALIDATION) else ()
        lacks = _lacks(reader)
    except Unreadable as e:
        place = FILE if e.line is None else f"{FILE}:{e.line}"
        return Verdict("unknown", f"this vLLM decides in a way that doctor does not read: {e}", place)
    if any(c.kind == "raise" or not isinstance(c.value, bool) for c in choices):
        return Verdict("undecided", _unknown(choices), None, _roads(choices), lacks)
    values = {c.value for c in choices}
    first = choices[0]
    if len(values) > 1:
        return Verdict("undecided", _unknown(choices), None, _roads(choices), lacks)
    why, line = _why(reader, first, facts)
    if len(choices) > 1:
        why = f"all ways lead there ({_unknown(choices)})"
    if first.value is False:
        return Verdict("V1", why, f"{FILE}:{line}", (), lacks)
    kinds = {v.kind for v in validation}
    if kinds == {"raise"}:
        refusal = validation[0]
        return Verdict("refused", f"{why}; but {refusal.value}", f"{FILE}:{refusal.line}", (), lacks)
    if "raise" in kinds:
        return Verdict(
            "undecided", f"V2, unless it is refused: {_unknown(validation)}", None, _roads(validation), lacks
        )
    return Verdict("V2", why, f"{FILE}:{line}", (), lacks)


def _lacks(reader: Reader) -> tuple[Feature, ...]:
    if not reader.has(_FEATURES):
        return ()
    found: dict[str, Feature] = {}
    for outcome in reader.outcomes(_FEATURES):
        for item in outcome.value.items if isinstance(outcome.value, Gathered) else ():
            found.setdefault(item.text, item)
    return tuple(found.values())


def _why(reader: Reader, outcome: Outcome, facts: Mapping[str, Value]) -> tuple[str, int]:
    asked = facts.get(FACT)
    if asked is not None and len(outcome.tests) == 1:
        return f"{VARIABLE}={int(bool(asked))} asks for it", outcome.tests[0].line
    last = outcome.tests[-1] if outcome.tests else None
    if last is None or not last.value:
        return "upstream's default for this model", outcome.line
    if _DEFAULT in last.text:
        inner = reader.outcomes(_DEFAULT)[0]
        test = inner.tests[-1] if inner.tests else None
        return _meaning(test.text if test is not None and test.value else inner.text), inner.line
    lacking = [f.text for f in _lacks(reader) if f.certain]
    if last.text == "unsupported" and lacking:
        return f"V2 does not have {', '.join(lacking)}", last.line
    return _meaning(last.text), last.line


def _meaning(text: str) -> str:
    return next((meaning for part, meaning in _MEANINGS if part in text), f"`{text}`")


def _unknown(outcomes: tuple[Outcome, ...]) -> str:
    tests = dict.fromkeys(test.text for outcome in outcomes for test in outcome.assumed)
    return "it depends on " + ("; ".join(f"`{text}`" for text in tests) or "what doctor cannot read")


def _roads(outcomes: tuple[Outcome, ...]) -> tuple[str, ...]:
    lines = []
    for outcome in outcomes:
        conditions = [test.text if test.value else f"not ({test.text})" for test in outcome.assumed]
        lines.append(
            f"{_end(outcome)} ({FILE}:{outcome.line})" + (f" where {' and '.join(conditions)}" if conditions else "")
        )
    return tuple(lines)


def _end(outcome: Outcome) -> str:
    if outcome.kind == "raise":
        return "refused"
    if isinstance(outcome.value, bool):
        return "V2" if outcome.value else "V1"
    return "not refused" if outcome.value is None else f"`{outcome.text}`"
