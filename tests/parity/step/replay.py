# SPDX-License-Identifier: Apache-2.0
"""Both runners on a trace from a file: `python -m step.replay OUT TRACE SHRINK`, in an environment of the matrix.

SHRINK: how long to make it smaller, in seconds. One JSON line goes to the file OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from step import trace as traces


def main(out: Path, path: Path, seconds: float) -> None:
    out.write_text(json.dumps(_answer(path, seconds)) + "\n", encoding="utf-8")


def _answer(path: Path, seconds: float) -> dict[str, Any]:
    try:
        trace = traces.read(path)
    except traces.TraceError as e:
        return {"error": str(e)}
    variables = json.loads(path.read_text(encoding="utf-8")).get("variables", {"KUNLUN_KERNELS": "torch"})
    from step import findings

    try:
        found = findings.first_difference(trace, variables)
    except Exception as e:  # noqa: BLE001 - upstream's runner does not take it
        return {"error": f"upstream's runner raises {type(e).__name__}: {e}"}
    kept = None
    if found is not None and seconds > 0:
        trace, _ = findings.shrink(trace, found, variables, seconds)
        kept = path.with_name(f"{path.stem}-small.json")
        kept.write_text(traces.dumps(trace, {"variables": variables, "found": str(found)}), encoding="utf-8")
    return {
        "difference": None if found is None else str(found),
        "variables": variables,
        "steps": trace.steps,
        "requests": len(trace.arrivals),
        "kept": None if kept is None else str(kept),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
