# SPDX-License-Identifier: Apache-2.0
"""What the tier asks of engines: `python -m e2e.scenarios DEVICE` prints it as JSON. No vLLM and no torch here.

A scenario is one engine and the cases that it is asked, one after another. What a case must be equal to is its
oracles: `v1`, upstream's runner V1 without drafts, to the text; `v2`, upstream's runner V2 on its own Triton kernels,
to the counters of drafts. `known` is an answer that follows from how the model was made. `ranges` say that what the
case is about happened: counter -> [least, most or null]; of each oracle that has the counter, and of the fork.
Beside the engine's counters there are `cached` (tokens of prompts) and `matches` (requests that give the call's
"answers").
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e import chain

Call = dict[str, Any]

FOUR, EIGHT = chain.prompts(4), chain.prompts(8)
LONG = chain.prompts(8, seed="long", longest=120)
# One beginning of two blocks of 32 tokens, eight ends.
SHARED = [chain.prompts(1, seed="beginning", longest=200)[0][:70] + ids[:9] for ids in EIGHT]
STEPS = 4
SEEDS = [0, 1, 7, 2**31, 2**63 - 1, 5, 5, 123456789]


@dataclass(frozen=True)
class Case:
    """`calls`: in a row. `unlike`: a case of the scenario whose tokens the oracle's must differ from. `known`: per call
    {"tokens", "counters"}."""

    name: str
    calls: tuple[Call, ...]
    oracles: tuple[str, ...] = ("v1",)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    unlike: str | None = None
    known: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Scenario:
    """`llm`: arguments of the engine; `draft` among them is left out for V1. `ranks`: in processes of their own.
    `hide_views`: the fork's engine finds no view of host memory, as on Kunlun. `cannot`: why it cannot run on this
    device; its cases are told as skipped."""

    name: str
    llm: dict[str, Any]
    cases: tuple[Case, ...]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    hide_views: bool = False
    cannot: str | None = None


def call(prompts: list[Any], **params: Any) -> Call:
    return {"prompts": prompts, "params": params}


def case(name: str, *calls: Call, oracles: str = "v1", **more: Any) -> Case:
    return Case(name, calls, tuple(oracles.split()), **more)


BOTH = "v1 v2"


def scenarios() -> Iterator[Scenario]:
    yield from _plain()
    yield from _options()
    yield from _drafts()
    yield from _other_methods()
    yield from _engines()
    yield from _cannot()


def _plain() -> Iterator[Scenario]:
    yield Scenario("greedy", {"model": "dense"}, (
        case("batch", call(EIGHT, max_tokens=32), oracles=BOTH),
        case("one request", call(LONG[:1], max_tokens=100), oracles="v1"),
        case("more than fit", call(chain.prompts(20), max_tokens=24), oracles="v1"),
        case("arrivals and aborts", _comings_and_goings(), oracles=BOTH),
    ))  # fmt: skip
    yield Scenario("known chain", {"model": "chain"}, (
        case("batch", call(EIGHT, max_tokens=64), known=({"tokens": [chain.continuation(p, 64) for p in EIGHT]},)),
    ))  # fmt: skip
    yield from _caches("", {"model": "dense"}, "v1", 48)


def _caches(prefix: str, llm: dict[str, Any], small: str, layer_kib: int) -> Iterator[Scenario]:
    """Chunks, preemption, cached prefixes, cache groups. `layer_kib`: of all layers, a block of 32 tokens."""
    tight = {"block_size": 32, "kv_cache_memory_bytes": 12 * layer_kib << 10}
    ranges = {"num_accepted_tokens": (1, None)} if "draft" in llm else {}
    # Two blocks of each prompt the second time; with drafts upstream computes the last one again.
    cached = 8 * 32 if "draft" in llm else 8 * 64
    yield Scenario(f"{prefix}chunked prefill", {**llm, "max_num_batched_tokens": 64}, (
        case("long prompts", call(LONG, max_tokens=16), oracles=small, ranges=ranges),
    ))  # fmt: skip
    yield Scenario(f"{prefix}preemption", {**llm, **tight}, (
        case("greedy", call(EIGHT, max_tokens=90), ranges={**ranges, "num_preemptions": (1, None)}),
        case("arrivals and aborts", _comings_and_goings(70), ranges={"num_preemptions": (1, None)}),
    ))  # fmt: skip
    yield Scenario(f"{prefix}prefix caching", {**llm, "block_size": 32, "enable_prefix_caching": True}, (
        case("cold, then warm", call(SHARED, max_tokens=12), call(SHARED, max_tokens=12), oracles=small,
             ranges={**ranges, "cached": (cached, None)}),
    ))  # fmt: skip
    yield Scenario(f"{prefix}cache groups", {**llm, "model": "windows"}, (
        case("sliding windows", call(LONG, max_tokens=24), oracles=small, ranges=ranges),
    ))  # fmt: skip


def _comings_and_goings(length: int = 24) -> Call:
    """Twelve requests for eight places; three are ended from outside, two of them early."""
    prompts = chain.prompts(12, seed="comings", longest=60)
    arrive = [0, 0, 0, 0, 2, 3, 3, 7, 7, 7, 12, 12]
    return {"prompts": prompts, "params": {"max_tokens": length}, "arrive": arrive, "abort": {"4": [1, 5], "9": [8]}}


def _options() -> Iterator[Scenario]:
    """Sampling options; on `soft`, which follows the chain, they are made to matter for the first prompt."""
    yield Scenario("options", {"model": "soft"}, (*_features(BOTH, drafts=False), *_drawn()))


# What upstream refuses together with drafts.
NOT_WITH_DRAFTS = ("logit bias", "min p of one")


def _features(oracles: str, *, drafts: bool) -> Iterator[Case]:
    """Everything that is decided without random numbers: the runners agree. A little is enough for the interpreter."""
    following = chain.continuation(LONG[0], 12)
    words = [f"t{token}" for token in following]
    drawn = {"temperature": 0.9, "seed": 5}
    yield case("nothing", call(LONG[:3], max_tokens=12), oracles=oracles)
    matter: dict[str, dict[str, Any]] = {
        "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 3.0},
        "logit bias": {"logit_bias": {"7": 100.0, "9": 5.0}},
        "allowed ids": {"allowed_token_ids": [3, 5, 8, 11]},
        "min tokens": {"min_tokens": 5, "stop_token_ids": list(range(0, chain.WORDS, 5)) + following[1:2]},
        # One word, and words of two and three tokens, whose beginnings are drafted.
        "bad words": {"bad_words": [words[8], " ".join(words[:2]), " ".join(words[4:7])]},
        "stop strings": {"stop": [words[6]], "include_stop_str_in_output": True},
        # Whole tokens end to end: none of them has a space.
        "structured choice": {"structured_outputs": {"choice": ["".join(words[:9]), "t9"]}, "ignore_eos": False},
        "structured regex": {"structured_outputs": {"regex": "(t1[0-9]){3}t2"}, "ignore_eos": False},
    }
    # One token is left: what they cut away shows, and nothing is drawn.
    same: dict[str, dict[str, Any]] = {
        "logprobs": {"logprobs": 3},
        "prompt logprobs": {"prompt_logprobs": 2},
        "top k of one": {**drawn, "top_k": 1},
        "top p of nothing": {**drawn, "top_p": 1e-6},
        "min p of one": {**drawn, "min_p": 1.0},
    }
    for name, options in {**matter, **same}.items():
        if not (drafts and name in NOT_WITH_DRAFTS):
            asked = call(LONG[:3], **{"max_tokens": 12, **options})
            # Upstream's V2 pins the grammar's mask, which a CPU refuses.
            able = "v1" if "structured" in name else oracles
            if drafts and name == "stop strings":
                able = "v2"  # the tokens of the last step are all there, how many they are is a matter of drafts
            yield case(name, asked, oracles=able, unlike="nothing" if name in matter else None)


def _drawn(*, drafts: bool = False) -> Iterator[Case]:
    """Random numbers: runner V1 draws others, so that upstream's V2 alone can say what is right."""

    def seeded(**params: Any) -> Call:
        each = [{"temperature": 0.9, "max_tokens": 12, **params, "seed": seed} for seed in SEEDS]
        return {"prompts": EIGHT, "params": each}

    mixed = [
        {"temperature": t, "seed": s, "max_tokens": 12, **more}
        for t, s, more in (
            (0.0, 1, {}), (1.0, 2, {"logprobs": 2}), (0.7, 3, {"top_k": 20}), (1.3, 4, {"top_p": 0.9}), (0.0, 5, {}),
            (0.9, 6, {"frequency_penalty": 0.5}), (1.0, 7, {"repetition_penalty": 1.2}), (0.5, 8, {"n": 2}),
        )
    ]  # fmt: skip
    yield case("seeded", seeded(), oracles="v2")
    yield case("seeded, mixed options", {"prompts": EIGHT, "params": mixed}, oracles="v2")
    yield case("seeded, three completions", call(EIGHT[:3], max_tokens=10, temperature=1.0, seed=11, n=3), oracles="v2")
    if not drafts:
        yield case("seeded, min p", seeded(temperature=2.0, min_p=0.05), oracles="v2")


def _drafts() -> Iterator[Scenario]:
    """dspark: with a known answer, then on targets with weights in attention and MLP."""
    for draft in ("exact", "half", "never", "bonus"):
        llm = {"model": "chain", "draft": {"model": f"draft-{draft}"}}
        yield Scenario(f"dspark {draft}", llm, (
            case("known answer", call(EIGHT, max_tokens=32), oracles=BOTH, known=(_known(EIGHT, draft, 32),)),
        ))  # fmt: skip
    some = {"num_accepted_tokens": (1, None)}
    for draft in ("exact", "half", "bonus", "dense"):
        llm = {"model": "woven", "draft": {"model": f"draft-{draft}"}}
        ranges = {} if draft == "dense" else some
        yield Scenario(f"dspark {draft}, woven", llm, (
            case("greedy", call(EIGHT, max_tokens=16), oracles=BOTH, ranges=ranges),
            case("arrivals and aborts", _comings_and_goings(), ranges=ranges),
        ))  # fmt: skip
    # The target's 48 KiB a block, and 32 KiB for the draft's layers.
    caches = tuple(_caches("dspark: ", {"model": "woven", "draft": {"model": "draft-exact"}}, "v1", 80))
    yield from caches
    for scenario in caches:
        yield replace(scenario, name=f"no host views, {scenario.name}", hide_views=True)
    soft = {"model": "soft", "draft": {"model": "draft-soft"}}
    yield Scenario("dspark: options", soft, (*_features("v1", drafts=True), *_drawn(drafts=True)))
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.7, 0.5, 0.3]}
    probabilistic = {"draft_sample_method": "probabilistic"}
    for name, spec in (
        ("probabilistic drafts", probabilistic),
        ("block verification", {**probabilistic, "rejection_sample_method": "block"}),
        ("synthetic acceptance", synthetic),
    ):
        yield Scenario(f"dspark: {name}", {**soft, "draft": {**soft["draft"], **spec}}, tuple(_drawn(drafts=True)))


def _other_methods() -> Iterator[Scenario]:
    some = {"num_accepted_tokens": (1, None)}
    for method, target, draft, steps in (
        ("dflash", "few", "draft-dflash", 4),
        ("eagle", "woven", "draft-eagle", 3),
        ("eagle3", "few", "draft-eagle3", 3),
        ("mtp", "mimo", "mimo", 2),
    ):
        llm = {"model": target, "draft": {"method": method, "model": draft, "num_speculative_tokens": steps}}
        yield Scenario(method, llm, (
            case("greedy", call(EIGHT, max_tokens=16), oracles=BOTH, ranges=some),
            case("arrivals and aborts", _comings_and_goings(), ranges=some),
            case("seeded", {"prompts": EIGHT[:4], "params": [
                {"temperature": 0.9, "seed": seed, "max_tokens": 10} for seed in SEEDS[:4]
            ]}, oracles="v2"),
        ))  # fmt: skip


def _engines() -> Iterator[Scenario]:
    """Ways to run an engine."""
    for on in (True, False):
        name = f"async scheduling {'on' if on else 'off'}"
        yield Scenario(name, {"model": "dense", "async_scheduling": on}, (
            case("greedy", call(EIGHT, max_tokens=24), oracles=BOTH if on else "v1"),
            case("arrivals and aborts", _comings_and_goings()),
        ))  # fmt: skip
        llm = {"model": "woven", "draft": {"model": "draft-half"}, "async_scheduling": on}
        yield Scenario(f"dspark: {name}", llm, (
            case("greedy", call(EIGHT, max_tokens=24), ranges={"num_accepted_tokens": (1, None)},
                 oracles=BOTH if on else "v1"),
            case("arrivals and aborts", _comings_and_goings()),
        ))  # fmt: skip
    adapters: list[str | None] = ["adapter-a", None, "adapter-b", "adapter-a", None, "adapter-b", "adapter-b", None]
    yield Scenario("LoRA", {"model": "woven", "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}, (
        case("none", call(EIGHT, max_tokens=16)),
        case("two adapters in a batch", {**call(EIGHT, max_tokens=16), "adapters": adapters}, unlike="none"),
    ))  # fmt: skip
    for name, llm in (("bfloat16", {"dtype": "bfloat16"}), ("fp8 cache", {"kv_cache_dtype": "fp8"})):
        yield Scenario(name, {"model": "dense", **llm}, (case("greedy", call(EIGHT, max_tokens=24)),))
    yield from _ranks()
    yield _evaluation()


def _ranks() -> Iterator[Scenario]:
    """Engines that do not live in the process that asks."""
    env = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    drafts = {"model": "woven", "draft": {"model": "draft-half"}}
    some = {"num_accepted_tokens": (1, None)}
    yield Scenario("engine in its own process", drafts, (
        case("greedy", call(EIGHT, max_tokens=24), ranges=some),
    ), {**env, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"})  # fmt: skip
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    yield Scenario("two ranks", {**drafts, **two}, (
        case("greedy", call(EIGHT, max_tokens=24), ranges=some),
        case("penalties and logprobs", call(EIGHT, max_tokens=16, repetition_penalty=3.0, logprobs=2)),
    ), {**env, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}, ranks=2)  # fmt: skip


def _evaluation() -> Scenario:
    """Questions behind a common beginning and two examples, answered until a word ends them; a strict match counts.

    The answers are those of the chain, which `woven` gives more often than not.
    """
    lines = (Path(__file__).parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    asked = call([q["prompt"] for q in questions], max_tokens=4)
    answers = [q["answer"] for q in questions]
    llm = {"model": "woven", "draft": {"model": "draft-exact"}, "block_size": 16, "enable_prefix_caching": True}
    return Scenario("evaluation", llm, (
        case(f"{len(questions)} questions", {**asked, "answers": answers}, ranges={
            "matches": (len(questions) // 4, len(questions) - 1), "cached": (1, None),
            "num_accepted_tokens": (1, None),
        }),
    ))  # fmt: skip


# What no engine on the device can do, with or without the fork.
CANNOT = {
    "CUDA graphs": "a CPU has no graphs; tests/device/run.sh runs engines with them",
    "pipeline of ranks": "upstream's stand-in for streams on a CPU lacks record_event and wait_event",
    "multimodal and encoder-decoder models": "upstream pins host memory unconditionally, which a CPU build refuses",
    "hybrid mamba states": "the engine environment's operators are right for dense attention only",
    "M-RoPE": "its models are multimodal, see there",
    "fused kernels": "need a Triton that launches; tests/device/run.sh runs engines with them, the tiers ops and step "
    "run them in the interpreter",
    "context parallelism (DCP)": "the CPU's attention cannot return the log-sum-exp that ranks merge",
    "sleep mode": "upstream ignores it on a CPU",
}


def _cannot() -> Iterator[Scenario]:
    for name, why in CANNOT.items():
        yield Scenario(name, {"model": "dense"}, (case("not run", call(EIGHT, max_tokens=1)),), cannot=why)


def _known(prompts: list[list[int]], draft: str, length: int) -> dict[str, Any]:
    expected = chain.acceptance(prompts, draft, length, STEPS)
    return {
        "tokens": [chain.continuation(ids, length) for ids in prompts],
        "counters": {
            "num_drafts": expected.rounds,
            "num_draft_tokens": expected.drafted,
            "num_accepted_tokens": expected.accepted,
            "num_accepted_tokens_per_pos": list(expected.by_position),
        },
    }


def main(device: str) -> None:
    if device != "cpu":
        raise SystemExit(f"no scenarios for {device}")
    print(json.dumps([asdict(scenario) for scenario in scenarios()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
