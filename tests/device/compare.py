"""Whether all variants say the same: `python compare.py UPSTREAM.json OTHER.json...`; exit code 1 where one differs."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

# Of log probabilities: sums of 150,000 bfloat16 logits in another order.
CLOSE = 1e-4


def distance(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference between log probabilities of the same tokens; infinite where the tokens are others."""
    found = 0.0
    for a, b in zip((x for request in ours for x in request), (x for request in theirs for x in request), strict=True):
        if [token for token, _ in a] != [token for token, _ in b]:
            return float("inf")
        found = max([found, *(abs(p - q) for (_, p), (_, q) in zip(a, b, strict=True))])
    return found


def main(files: list[str]) -> int:
    first, *others = [(Path(f).stem, json.loads(Path(f).read_text())) for f in files]
    bad = 0
    for name, said in (first, *others):
        for engine, about in said["engines"].items():
            peak = about["memory"] >> 20
            start = f"start {about['start']:.0f} s, peak {peak} MiB"
            print(f"{name}: {engine}: {about['plan']}; {about['buffers']}; {start}")
            for call, result in about["calls"].items():
                expected = first[1]["engines"][engine]["calls"][call]
                differ = [k for k in ("tokens", "drafts", "kv") if result[k] != expected[k]]
                off = distance(result["logprobs"], expected["logprobs"])
                if off > CLOSE:
                    differ.append(f"logprobs by {off:.1e}")
                rate = statistics.median(result["rates"])
                shown = f"differ: {', '.join(differ)}{where(result, expected)}" if differ else "equal"
                print(f"  {call}: {shown}; wrong tokens: {result['wrong']}; {rate:.0f} tokens/s")
                bad += bool(differ) or bool(result["wrong"])
    return int(bool(bad))


def where(result: dict[str, Any], expected: dict[str, Any]) -> str:
    for request, (ours, theirs) in enumerate(zip(result["tokens"], expected["tokens"], strict=True)):
        for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a != b:
                return f" (request {request}, token {at}: {a}, not {b})"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
