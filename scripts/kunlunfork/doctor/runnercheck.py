"""The runner of a configuration, as a line of doctor: what the tree says, and with --run what vLLM says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kunlunfork import transaction
from kunlunfork.doctor import model as models
from kunlunfork.doctor import runner, speculative
from kunlunfork.doctor.check import Check
from kunlunfork.doctor.child import Answer
from kunlunfork.doctor.environment import KERNELS, Asked, gate
from kunlunfork.doctor.model import Model
from kunlunfork.doctor.runner import Verdict
from kunlunfork.doctor.values import PRESENT, Value

_UNSET = f"unset {runner.VARIABLE}"


@dataclass(frozen=True)
class Given:
    """The configuration that is asked about."""

    model: Model | None
    speculative: Mapping[str, Any] | None


@dataclass(frozen=True)
class Tree:
    """What is known of the tree: `forked`: it carries the fork; `whole`: as it was applied; `has_triton`: upstream's
    own answer, None where nobody could ask; `logits`: whether a plugin brings logits processors; `refuses`: whether
    the vllm_kunlun plugin adds a refusal of its own."""

    root: Path
    forked: bool
    whole: bool
    has_triton: bool | None
    logits: bool
    refuses: bool


def facts_of(tree: Tree, given: Given, asked: Asked) -> dict[str, Value]:
    """What `vllm/config/vllm.py` would look at, as far as it is known."""
    facts: dict[str, Value] = {} if asked.unreadable else {runner.FACT: asked.v2}
    facts["entry_points(group='vllm.logits_processors')"] = tree.logits
    facts.update({"self.model_config": PRESENT} if given.model is None else models.facts(given.model, tree.root))
    facts.update(speculative.facts(given.speculative, tree.root))
    whose = runner.triton_of(tree.root)
    has = tree.has_triton if whose == "upstream" else None
    if whose == "fork":
        has = gate(asked.kernels, tree.root, tree.whole, tree.has_triton)
    if has is not None:
        facts[runner.HAS_TRITON] = has
    return facts


def check(tree: Tree, given: Given, asked: Asked, engine: Answer | None) -> tuple[Verdict, Check]:
    """The verdict of the tree, confirmed or contradicted by vLLM where it was asked."""
    facts = facts_of(tree, given, asked)
    verdict = runner.decide(tree.root, facts)
    if asked.unreadable:
        verdict = Verdict("refused", f"{runner.VARIABLE} is neither 0 nor 1")
    elif tree.forked and asked.refused:
        verdict = Verdict("refused", "the fork stops at the KUNLUN_* variables (see switches)")
    method = facts.get("self.speculative_config.method")
    if given.speculative is not None and method is None and verdict.runner in ("V2", "V1") and asked.v2 is None:
        verdict = Verdict("undecided", "vLLM itself finds out the `method` of this --speculative-config; name it there")
    line = _line(verdict, tree, given, asked, dspark=method == "dspark")
    config = None if engine is None else engine.get("config")
    if config is not None:
        line = _confirmed(line, verdict, config, tree, asked)
    return verdict, line


def _line(verdict: Verdict, tree: Tree, given: Given, asked: Asked, *, dspark: bool) -> Check:
    name = "runner"
    place = f" ({verdict.where})" if verdict.where else ""
    details = verdict.depends + _lacks(verdict)
    if verdict.runner == "undecided" and given.model is None and given.speculative is None:
        text = "not decided without a model: its architecture decides"
        return Check(name, "note", text, "kunlunfork doctor --model DIR", _lacks(verdict))
    if verdict.runner == "unknown":
        return Check(name, "note", f"not known: {verdict.why}{place}", "kunlunfork doctor --run --model DIR", details)
    if verdict.runner == "undecided":
        return Check(name, "note", f"not decided: {verdict.why}", "kunlunfork doctor --run --model DIR", details)
    if verdict.runner == "refused":
        return Check(name, "bad", f"refused: {verdict.why}{place}", _mend(verdict, tree, asked), details)
    text = f"{verdict.runner}: {verdict.why}{place}"
    if verdict.runner == "V1" and dspark:
        fix = _UNSET if asked.v2 is False else "vllm serve without --speculative-config"
        return Check(name, "bad", f"{text}; method dspark is only in V2", fix, details)
    if verdict.runner == "V2" and tree.refuses and given.speculative is not None:
        return Check(
            name, "note", f"{text}; but the vllm_kunlun plugin refuses speculative decoding on V2 (--run asks)",
            "kunlunfork doctor --run --model DIR", details,
        )  # fmt: skip
    return Check(name, "ok", text, None, details)


def _lacks(verdict: Verdict) -> tuple[str, ...]:
    """What V2 does not have: what is asked for, and what would be refused if it were."""
    asked = ", ".join(f.text for f in verdict.lacks if f.certain)
    others = ", ".join(f.text for f in verdict.lacks if not f.certain)
    lines = (("asked for, and not in V2: ", asked), ("not in V2, and not asked for here: ", others))
    return tuple(head + names for head, names in lines if names)


def _mend(verdict: Verdict, tree: Tree, asked: Asked) -> str:
    if asked.unreadable:
        return _UNSET
    if tree.forked and asked.refused:
        return "kunlunfork switches"
    if "Triton" in verdict.why and not any(f.certain for f in verdict.lacks):
        if not tree.forked:
            return transaction.command(tree.root, "apply")
        return f"unset {KERNELS}" if asked.kernels != "auto" else f"kunlunfork verify {shlex.quote(str(tree.root))}"
    return _UNSET if asked.v2 else f"vllm serve without {', '.join(f.text for f in verdict.lacks if f.certain)}"


def _confirmed(line: Check, verdict: Verdict, config: Mapping[str, Any], tree: Tree, asked: Asked) -> Check:
    """What vLLM says counts; that the two disagree is said."""
    if "error" in config:
        text = f"vLLM refuses it: {config['error']}"
        if verdict.runner == "refused":
            return Check(line.name, "bad", f"{line.found}; confirmed by vLLM", line.fix, (*line.details, text))
        agree = "" if verdict.runner in ("undecided", "unknown") else f"; the tree was read as {verdict.runner}"
        fix = line.fix if line.state == "bad" and line.fix else "mend what vLLM names, then the same command again"
        return Check(line.name, "bad", text + agree, fix, line.details)
    said = "V2" if config["v2"] else "V1"
    if verdict.runner == said:
        state = "ok" if line.state == "note" else line.state
        found = line.found.partition("; but the vllm_kunlun")[0]
        return Check(
            line.name, state, f"{found}; confirmed by vLLM", line.fix if state == "bad" else None, line.details
        )
    if verdict.runner in ("undecided", "unknown"):
        return Check(line.name, "ok", f"{said}, says vLLM ({line.found})", None, line.details)
    return Check(
        line.name, "note", f"{said}, says vLLM; the tree was read as {verdict.runner}: {verdict.why}",
        "please report it with this output: kunlunfork read it wrong, or a plugin changes it", line.details,
    )  # fmt: skip


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as data."""
    return {
        "runner": verdict.runner,
        "why": verdict.why,
        "where": verdict.where,
        "depends": list(verdict.depends),
        "lacks": [asdict(feature) for feature in verdict.lacks],
    }
