"""What becomes of configurations, without an engine: `python config.py JOB.json OUT.json`, in the engine environment.

A job is {"models": DIR, "cases": [...]}; a case is {"env", "model", "draft" or nothing, "lack": "module:function" of
the fork's launchers to take away, or nothing}. The answer to each: {"v2": bool} or {"error": text}, and the log.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import run


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(job_file: str, out_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    os.environ.update({"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"})
    answers = [_answer(case, Path(job["models"])) for case in job["cases"]]
    Path(out_file).write_text(json.dumps(answers), encoding="utf-8")


def _answer(case: dict[str, Any], models: Path) -> dict[str, Any]:
    before = dict(os.environ)
    os.environ.update(case.get("env", {}))
    log = _Log()
    logger = logging.getLogger("vllm")
    logger.addHandler(log)
    try:
        with _lacking(case.get("lack")):
            return {**_configure(case, models), "log": log.lines}
    finally:
        logger.removeHandler(log)
        os.environ.clear()
        os.environ.update(before)


def _configure(case: dict[str, Any], models: Path) -> dict[str, Any]:
    from vllm import triton_utils
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.sample.ops import topk_topp_sampler

    spec = None
    if draft := case.get("draft"):
        spec = {"method": "dspark", "model": str(models / draft), "num_speculative_tokens": 4}
    args = EngineArgs(model=str(models / case["model"]), max_model_len=256, enforce_eager=True, speculative_config=spec)
    try:
        config = args.create_engine_config()
    except ValueError as e:
        return {"error": str(e)}
    return {
        "v2": config.use_v2_model_runner,
        "triton_elsewhere": [triton_utils.HAS_TRITON, topk_topp_sampler.HAS_TRITON],
        "modules": sorted(m for m in sys.modules if m.startswith("vllm.v1.worker.gpu.")),
    }


class _lacking:
    """The fork without one of its launchers, as a build would be that has lost it."""

    def __init__(self, what: str | None) -> None:
        self.what = what

    def __enter__(self) -> None:
        from vllm.v1.worker.gpu.kunlun import gate

        gate._complete.cache_clear()
        if self.what:
            name, self.function = self.what.split(":")
            self.module = importlib.import_module(f"vllm.v1.worker.gpu.kunlun.launchers.{name}")
            self.value = self.module.__dict__.pop(self.function)

    def __exit__(self, *unused: object) -> None:
        if self.what:
            setattr(self.module, self.function, self.value)


if __name__ == "__main__":
    run.quiet_threads()
    main(*sys.argv[1:])
