"""`bench e2e`: several variants take turns at the same requests, in one sitting.

Every number of a variant is from the same requests as the others', a round at a time: A, B, C, A, B, C. Absolute
numbers of different sittings do not compare, since the speed of a host differs from hour to hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

from kunlunfork.bench.engines import UPSTREAM_V2, Engine


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * int(share * 100) // 100) - 1, 0)]


def measure(
    engines: Sequence[Engine],
    loads: Sequence[int],
    rounds: int,
    input: int,
    output: int,
    note: Callable[[str], object],
    temperature: float = 0.0,
) -> list[dict[str, Any]]:
    """One row a variant and load. loads: numbers of requests; a round that warms up comes first and is not counted.

    temperature: 0 is greedy; else every request samples with a seed of its own, and `same` of a row says whether all
    tokens are those of upstream V2.
    """
    rows = []
    for load in loads:
        answers: dict[int, list[dict[str, Any]]] = {i: [] for i in range(len(engines))}
        for number in range(rounds + 1):
            for i, engine in enumerate(engines):
                # The first round only warms up: it need not be long.
                length = output if number else min(output, 64)
                question = {"do": "rate", "requests": load, "input": input, "output": length, "seed": number}
                if temperature:
                    question["temperature"] = temperature
                answer = engine.ask(question)
                if answer is not None and number:
                    answers[i].append(answer)
        for i, engine in enumerate(engines):
            rows.append(row(engine, load, answers[i], rounds))
        if temperature:
            _same(rows[-len(engines) :], [[a["said"] for a in answers[i]] for i in range(len(engines))])
        told = zip(engines, rows[-len(engines) :], strict=True)
        note(f"{load} requests: " + "; ".join(f"{e.variant.title} {r.get('tokens/s', '-')}" for e, r in told))
    return rows


def row(engine: Engine, load: int, answers: Sequence[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """The numbers of one variant under one load; times in milliseconds."""
    about: dict[str, Any] = {
        "variant": engine.variant.name,
        "drafts": engine.variant.drafts,
        "views hidden": engine.variant.hide_views,
        "requests": load,
        "runs": engine.about.get("plan") or engine.about.get("runner"),
    }
    if engine.error is not None or len(answers) < rounds:
        return {**about, "error": engine.error}
    speeds = [a["tokens"] / a["seconds"] for a in answers]
    ttft = [1000 * t for a in answers for t in a["ttft"]]
    tpot = [1000 * t for a in answers for t in a["tpot"]]
    wrong = [a["wrong"] for a in answers]
    return {
        **about,
        "tokens/s": round(median(speeds)),
        "range": [round(min(speeds)), round(max(speeds))],
        "ttft ms": round(mean(ttft), 2),
        "ttft p99 ms": round(percentile(ttft, 0.99), 2),
        "tpot ms": round(mean(tpot), 3),
        "tpot p95 ms": round(percentile(tpot, 0.95), 3),
        "tpot p99 ms": round(percentile(tpot, 0.99), 3),
        "wrong": None if None in wrong else sum(wrong),
    }


def _same(rows: list[dict[str, Any]], said: list[list[str]]) -> None:
    upstream = {r["drafts"]: s for r, s in zip(rows, said, strict=True) if r["variant"] == UPSTREAM_V2}
    for row_, digests in zip(rows, said, strict=True):
        if "error" not in row_ and upstream.get(row_["drafts"]):
            row_["same"] = digests == upstream[row_["drafts"]]


HEADER = ("", "drafts", "requests", "tokens/s", "range", "of V2", "TTFT ms", "TPOT ms", "p95", "p99", "wrong")


def table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows for the eye, under HEADER; `of V2`: the throughput as a multiple of upstream V2's in the same sitting."""
    base = {(r["requests"], r["drafts"]): r.get("tokens/s") for r in rows if r["variant"] == UPSTREAM_V2}
    found = []
    for r in sorted(rows, key=lambda r: (r["drafts"], r["requests"])):
        first = (r["variant"], "dspark" if r["drafts"] else "-", str(r["requests"]))
        if "tokens/s" not in r:
            found.append((*first, "failed", str(r.get("error"))[:60], *[""] * 6))
            continue
        upstream = base.get((r["requests"], r["drafts"]))
        ratio = f"{r['tokens/s'] / upstream:.2f}" if upstream else ""
        low, high = r["range"]
        numbers = (f"{r['ttft ms']:.1f}", f"{r['tpot ms']:.2f}", f"{r['tpot p95 ms']:.2f}", f"{r['tpot p99 ms']:.2f}")
        found.append((*first, str(r["tokens/s"]), f"{low}-{high}", ratio, *numbers, _known(r)))
    return found


def _known(row: dict[str, Any]) -> str:
    """Of a model whose answers are known, how many tokens are wrong; sampled, whether upstream V2 said the same."""
    if "same" in row:
        return "same" if row["same"] else "other"
    return "-" if row["wrong"] is None else str(row["wrong"])
