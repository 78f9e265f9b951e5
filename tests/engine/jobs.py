"""What the engines are asked: runner V1 and the interpreter get the same jobs as the fork. No vLLM, no torch here."""

from __future__ import annotations

from typing import Any

from e2e import chain

Engine = dict[str, Any]

SIXTEEN = chain.prompts(16)
EIGHT = SIXTEEN[:8]
LONG = chain.prompts(8, seed="long", longest=120)
# One beginning of two blocks of 32 tokens, eight ends.
SHARED = [chain.prompts(1, seed="beginning", longest=200)[0][:70] + ids[:9] for ids in EIGHT]
STEPS = 4

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def call(name: str, prompts: list[list[int]], **params: Any) -> dict[str, Any]:
    return {"name": name, "prompts": prompts, "params": params}


def plain(env: dict[str, str]) -> list[Engine]:
    """No speculation: what runner V1 says as well."""
    # Three layers of two heads: 1.5 KiB a token, 48 KiB a block of 32. Twelve blocks hold four of these requests.
    tight = {"block_size": 32, "kv_cache_memory_bytes": 12 * 48 << 10}
    engines = [
        {"name": "chain", "llm": {"model": "chain"}, "calls": [call("greedy", SIXTEEN, max_tokens=64)]},
        {"name": "dense", "llm": {"model": "dense"}, "calls": [call("greedy", SIXTEEN, max_tokens=64), *features()]},
        {"name": "soft", "llm": {"model": "soft"}, "calls": features()},
        {
            "name": "chunked",
            "llm": {"model": "dense", "max_num_batched_tokens": 32},
            "calls": [call("greedy", LONG, max_tokens=24)],
        },
        {"name": "tight", "llm": {"model": "dense", **tight}, "calls": [call("greedy", EIGHT, max_tokens=90)]},
        {
            "name": "prefix",
            "llm": {"model": "dense", "block_size": 32, "enable_prefix_caching": True},
            "calls": [call("cold", SHARED, max_tokens=12), call("warm", SHARED, max_tokens=12)],
        },
        {"name": "windows", "llm": {"model": "windows"}, "calls": [call("greedy", LONG, max_tokens=40)]},
        {
            "name": "half precision",
            "llm": {"model": "chain", "dtype": "bfloat16"},
            "calls": [call("greedy", EIGHT, max_tokens=32)],
        },
    ]
    return [{**engine, "env": env} for engine in engines]


# What upstream refuses together with drafts.
NOT_WITH_DRAFTS = ("logit bias", "min p")


def features() -> list[dict[str, Any]]:
    """Sampling options on which the runners agree: everything that is decided without random numbers.

    They are made to matter for the first prompt on a target that follows the chain.
    """
    following = chain.continuation(LONG[0], 12)
    words = [f"t{token}" for token in following]
    options: dict[str, dict[str, Any]] = {
        "nothing": {},
        "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 3.0},
        "logit bias": {"logit_bias": {"7": 100.0, "9": 5.0}},
        "allowed": {"allowed_token_ids": [3, 5, 8, 11]},
        "min tokens": {"min_tokens": 5, "stop_token_ids": list(range(0, chain.WORDS, 5)) + following[1:2]},
        # One word, and words of two and three tokens, whose beginnings are drafted.
        "bad words": {"bad_words": [words[8], " ".join(words[:2]), " ".join(words[4:7])]},
        "bad word behind three": {"bad_words": [" ".join(words[2:6])]},
        "logprobs": {"logprobs": 3},
        "prompt logprobs": {"prompt_logprobs": 2},
        # Whole tokens end to end: none of them has a space.
        "structured": {"structured_outputs": {"choice": ["".join(words[:9]), "t9"]}, "ignore_eos": False},
        # One token is left: what they cut away shows, and nothing is drawn.
        "top k": {"temperature": 0.9, "seed": 5, "top_k": 1},
        "top p": {"temperature": 0.9, "seed": 5, "top_p": 1e-6},
        "min p": {"temperature": 0.9, "seed": 5, "min_p": 1.0},
    }
    return [call(name, LONG[:3], **{"max_tokens": 12, **more}) for name, more in options.items()]


def speculative(env: dict[str, str], drafts: list[str]) -> list[Engine]:
    """Greedy dspark on the chain, whose output and acceptance are known."""
    engines = [
        {
            "name": draft,
            "llm": {"model": "chain", "draft": {"model": f"draft-{draft}"}},
            "log_drafts": True,
            "calls": [call("greedy", EIGHT, max_tokens=32)],
        }
        for draft in drafts
    ]
    return [{**engine, "env": env} for engine in engines]


def woven(env: dict[str, str], draft: str | None) -> list[Engine]:
    """A target whose words depend on every position and cache slot, with drafts that are right now and then or none."""
    llm: dict[str, Any] = {"model": "woven", **({"draft": {"model": f"draft-{draft}"}} if draft else {})}
    # The target's 48 KiB a block, and 32 KiB for the draft's layers.
    tight = {"block_size": 32, "kv_cache_memory_bytes": 12 * (80 if draft else 48) << 10}
    engines = [
        {"name": "greedy", "llm": llm, "calls": [call("greedy", EIGHT, max_tokens=48)]},
        {
            "name": "chunked",
            "llm": {**llm, "max_num_batched_tokens": 64},
            "calls": [call("greedy", LONG, max_tokens=24)],
        },
        {"name": "tight", "llm": {**llm, **tight}, "calls": [call("greedy", EIGHT, max_tokens=90)]},
        {
            "name": "prefix",
            "llm": {**llm, "block_size": 32, "enable_prefix_caching": True},
            "calls": [call("cold", SHARED, max_tokens=24), call("warm", SHARED, max_tokens=24)],
        },
        {"name": "windows", "llm": {**llm, "model": "windows"}, "calls": [call("greedy", LONG, max_tokens=40)]},
    ]
    return [{**engine, "env": env} for engine in engines]


def dense_drafts(env: dict[str, str]) -> list[Engine]:
    """Drafts that show every position and cache slot that the draft model saw."""
    llm = {"model": "woven", "draft": {"model": "draft-dense"}}
    calls = [call("greedy", EIGHT, max_tokens=24), call("chunked", LONG[:4], max_tokens=12)]
    return [
        {"name": "dense", "llm": {**llm, "max_num_batched_tokens": 64}, "log_drafts": True, "calls": calls, "env": env}
    ]


def speculative_features(env: dict[str, str], draft: bool = True) -> list[Engine]:
    """Sampling options with drafts that are right half the time; the answers are those without drafts."""
    llm: dict[str, Any] = {"model": "soft", **({"draft": {"model": "draft-soft"}} if draft else {})}
    calls = [c for c in features() if c["name"] not in NOT_WITH_DRAFTS]
    return [{"name": "features", "llm": llm, "calls": calls, "env": env}]


def sampled(env: dict[str, str]) -> list[Engine]:
    """Random numbers and drafts: runner V1 draws others, the interpreter is the oracle."""
    seeds = [0, 1, 7, 2**31, 2**63 - 1, 5, 5, 123456789]

    def drawn(name: str, **params: Any) -> dict[str, Any]:
        each = [{"temperature": 0.9, "max_tokens": 16, **params, "seed": seed} for seed in seeds]
        return {"name": name, "prompts": EIGHT, "params": each}

    mixed = [
        {"temperature": t, "seed": s, "max_tokens": 16, **more}
        for t, s, more in (
            (0.0, 1, {}),
            (1.0, 2, {}),
            (0.7, 3, {"top_k": 20}),
            (1.3, 4, {"top_p": 0.9}),
            (0.0, 5, {}),
            (0.9, 6, {"frequency_penalty": 0.5}),
            (1.0, 7, {"repetition_penalty": 1.2}),
            (0.5, 8, {}),
        )
    ]
    calls = [
        drawn("one temperature"),
        drawn("plain", temperature=1.0),
        {"name": "mixed", "prompts": EIGHT, "params": mixed},
    ]

    def probabilistic(name: str, **spec: Any) -> Engine:
        draft = {"model": "draft-soft", "draft_sample_method": "probabilistic", **spec}
        return {"name": name, "llm": {"model": "soft", "draft": draft}, "log_drafts": True, "calls": calls}

    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.7, 0.5, 0.3]}
    engines = [
        {"name": "no drafts", "llm": {"model": "soft"}, "calls": [*calls, drawn("min p", temperature=2.0, min_p=0.05)]},
        {
            "name": "greedy drafts",
            "llm": {"model": "soft", "draft": {"model": "draft-soft"}},
            "log_drafts": True,
            "calls": calls,
        },
        probabilistic("probabilistic drafts"),
        probabilistic("block verification", rejection_sample_method="block"),
        {
            "name": "synthetic acceptance",
            "llm": {"model": "soft", "draft": {"model": "draft-soft", **synthetic}},
            "log_drafts": True,
            "calls": calls,
        },
    ]
    return [{**engine, "env": env} for engine in engines]


def recorded(env: dict[str, str]) -> list[Engine]:
    """Everything that the interpreter is asked, named apart."""
    groups = {
        "sampled": sampled(env),
        "drafts": [*speculative(env, ["half"]), *dense_drafts(env)],
    }
    return [{**engine, "name": f"{group}: {engine['name']}"} for group, engines in groups.items() for engine in engines]
