# SPDX-License-Identifier: Apache-2.0
"""Shows that the step tier catches faults: `python -m step.selftest OUT STEPS SEED [I/N] [TEXT]`.

Runs every fault of faults.toml (or those with TEXT in their name) in each of its scenarios; of N processes this is
number I. Upstream's run of a scenario is taken once; each fault runs in a forked child, which inherits it. One JSON
line a fault and scenario goes to the file OUT.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch

from step import cells, drive, faults
from step.generate import generate
from step.trace import Trace

HERE = Path(__file__).resolve().parent
# Seconds for one fault; what takes longer hangs, which nobody would miss.
LIMIT = 240.0


def main(out: Path, steps: int, seed: int, share: str = "0/1", text: str = "") -> None:
    index, count = map(int, share.split("/"))
    listed = [f for f in faults.load(HERE / "faults.toml") if text in f.name and f.fits(harness.VERSION)]
    by_scenario: dict[str, list[faults.Fault]] = {}
    for fault in listed:
        for scenario in fault.scenarios:
            by_scenario.setdefault(scenario, []).append(fault)
    torch.set_num_threads(1)
    # Those with the most faults first, so that the shares are about equal.
    for scenario in sorted(by_scenario, key=lambda name: (-len(by_scenario[name]), name))[index::count]:
        trace = generate(scenario, seed, steps)
        seen = list(drive.oracle(trace))
        _write(out, {"fault": None, "scenario": scenario, **_child(lambda: _tested(None, trace, seen))})  # noqa: B023
        for fault in by_scenario[scenario]:
            answer = _child(lambda: _tested(fault, trace, seen))  # noqa: B023 - it is called at once
            _write(out, {"fault": fault.name, "file": fault.file, "new": fault.new, "scenario": scenario, **answer})


def _tested(fault: faults.Fault | None, trace: Trace, seen: list[drive.Seen]) -> dict[str, Any]:
    try:
        if fault is not None:
            faults.put(fault)
    except faults.Broken as e:
        return {"outcome": "broken", "message": str(e)}
    found = drive.follow(trace, seen, cells.variables("torch", "all-on"))
    if found is None:
        return {"outcome": "survived", "message": None, "step": None}
    return {"outcome": "caught", "message": str(found)[:600], "step": found.step}


def _child(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` says, in a process of its own."""
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            # Threads of the process group did not come along; there is one rank.
            from vllm.v1.worker.gpu import model_runner_v2

            model_runner_v2._gather = lambda told: [told]  # type: ignore[assignment]
            try:
                answer = run()
            except Exception as e:  # noqa: BLE001 - told, not caught: no runner could be made
                answer = {"outcome": "broken", "message": f"{type(e).__name__}: {e}"}
            os.write(writing, json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    data = b""
    while True:
        left = LIMIT - (time.monotonic() - began)
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            data = json.dumps({"outcome": "caught", "message": f"no end after {LIMIT:.0f} s", "step": None}).encode()
            break
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.close(reading)
    _, status = os.waitpid(child, 0)
    died = {"outcome": "caught", "message": f"the process ended with {os.waitstatus_to_exitcode(status)}", "step": None}
    return {**(json.loads(data) if data else died), "seconds": round(time.monotonic() - began, 2)}


def _write(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
