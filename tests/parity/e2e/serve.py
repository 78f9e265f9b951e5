# SPDX-License-Identifier: Apache-2.0
"""Engines for the tier `e2e`, one after another: `python -m e2e.serve FD MODELS fork|v1|v2`, in the engine environment.

Each line of standard input is a job: {"llm", "env", "hide_views", "cases": [{"name", "calls"}]}; `hide_views` is for
the rest of the process. Answers are JSON lines written to the file descriptor FD: {"started": about the engine,
"seconds"}, {"case", "said", "seconds"} for each case as it ends, {"done": true}. What goes wrong is {"error": text};
the process then ends, since an engine whose step failed never ends by itself. It ends with its parent, too.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from e2e import engine

MESSAGE = 2000


def main(fd: str, models: str, kind: str) -> None:
    os.set_inheritable(int(fd), False)
    _end_with(os.getppid())
    engine.quiet_threads()
    out = os.fdopen(int(fd), "wb", buffering=0)

    def tell(line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[out.write(data) :]

    try:
        engine.prepare(oracle=kind == "v2")
        for line in sys.stdin:
            job = json.loads(line)
            with engine.environment(job["env"]):
                _job(job, Path(models), tell)
            tell({"done": True})
    except BaseException as e:  # noqa: BLE001 - told, whatever it is
        tell({"error": f"{type(e).__name__}: {e}"[:MESSAGE]})
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(3)


def _job(job: dict[str, Any], models: Path, tell: Any) -> None:
    if job.get("hide_views"):
        engine.hide_views()
    began = time.perf_counter()
    llm = engine.make(job["llm"], models)
    tell({"started": _about(llm), "seconds": round(time.perf_counter() - began, 3)})
    for case in job["cases"]:
        began = time.perf_counter()
        said = [engine.ask(llm, call, models) for call in case["calls"]]
        tell({"case": case["name"], "said": said, "seconds": round(time.perf_counter() - began, 3)})
    engine.end(llm)
    del llm
    gc.collect()


def _about(llm: Any) -> dict[str, Any]:
    """Which runner runs, with what, on each rank."""
    scheduler = llm.llm_engine.vllm_config.scheduler_config
    about: dict[str, Any] = {"async_scheduling": bool(scheduler.async_scheduling)}
    runner = engine.model_runner(llm)
    about["runners"] = llm.collective_rpc(_rank) if runner is None else [_runner(runner)]
    return about


def _rank(worker: Any) -> dict[str, Any]:
    return _runner(worker.model_runner)


def _runner(runner: Any) -> dict[str, Any]:
    """Of the fork: `backend`; `sites`, the modules of the fork that their code comes from; `views`: of host memory."""
    about: dict[str, Any] = {"class": f"{type(runner).__module__}.{type(runner).__qualname__}"}
    if (plan := getattr(runner, "kunlun_plan", None)) is not None:
        about["backend"] = plan.backend
        homes = (fn.__module__.partition(".kunlun.")[2].partition(".")[0] for fn in plan.targets.values())
        about["sites"] = sorted(set(homes))
        about["views"] = _views()
    return about


def _views() -> bool:
    from vllm.v1.worker.gpu import buffer_utils

    return buffer_utils.UvaBuffer.__name__ != "DeviceBuffer"


def _end_with(parent: int) -> None:
    """End this process and those that it started when `parent` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
