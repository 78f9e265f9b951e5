"""The last recorded numbers of engines on a device, in Markdown, as README has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunlunfork.bench import e2e
from kunlunfork.errors import ForkError

BEGIN, END = "<!-- bench e2e -->", "<!-- end of bench e2e -->"
_HEADER = ("drafts", "requests", "", "tokens/s", "of V2", "TTFT ms", "TPOT ms", "TPOT P95", "TPOT P99", "wrong tokens")


def last(results: Path) -> Mapping[str, Any]:
    """The last line of `device e2e` in a file of results. Raises ForkError where there is none."""
    found = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines() if line.strip()]
    for line in reversed(found):
        if line["what"] == "device e2e":
            return dict(line)
    raise ForkError(f"{results} has no numbers of engines", expected="a line of `device e2e`")


def text(line: Mapping[str, Any]) -> str:
    """The table, and under it where and when it was measured; with a newline at its end."""
    lines = [f"| {' | '.join(_HEADER)} |", "|---|---:|---|" + "---:|" * (len(_HEADER) - 3)]
    for row in e2e.table(line["rows"]):
        variant, drafts, requests, speed, _, ratio, *rest = row
        cells = ("none" if drafts == "-" else drafts, requests, variant, speed, ratio, *rest)
        lines.append(f"| {' | '.join(cells)} |")
    about = line["machine"]
    where = f"One {about['gpu']}, torch {about['torch']}, Triton {about['triton']}, Python {about['python']}"
    lines += ["", f"{where}, {line['date'][:10]}, commit {line['commit']}. **Not measured on Kunlun hardware.**"]
    lines += [f"{line['note'][:1].upper()}{line['note'][1:]}."]
    return "\n".join(lines) + "\n"


def into(document: str, made: str) -> str:
    """README with the table in it. Raises ForkError where the marks are missing."""
    before, begin, rest = document.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ForkError(
            "the document has no place for the numbers", expected=f"{BEGIN} and {END} on lines of their own"
        )
    return before + begin + made + end + after
