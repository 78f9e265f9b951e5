"""A small tier e2e: the real processes, protocol and comparison, with an engine of our own that needs no vLLM.

What its engine says to a call is in the call: {"prompts": token ids, "says": {kind: what}} where `what` is tokens to
add, or `die`, `hang`, `raise`. It notes in the file `asked` who was asked what, and in which process.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import matrixkit
from support import REPO

from kunlunfork.content import Content

ENGINE = """
import os, pathlib, signal, sys, time
from contextlib import contextmanager
from types import SimpleNamespace as Some

HERE = pathlib.Path(__file__).parent
KIND = None

def quiet_threads(): pass
def end(llm): pass

def prepare(*, oracle):
    global KIND
    KIND = "v2" if oracle else "v1" if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0" else "fork"

@contextmanager
def environment(values):
    os.environ.update(values)
    yield
    for name in values:
        del os.environ[name]

CLASSES = {"fork": "ModelRunnerV2", "v1": "CPUModelRunner", "v2": "CPUModelRunner"}
HOMES = {"fork": "x", "v1": "vllm.v1.worker.cpu_model_runner", "v2": "vllm.v1.worker.cpu.model_runner"}

def make(llm, models):
    assert (pathlib.Path(models) / "made").exists()
    if llm.get("start") == KIND:
        raise RuntimeError("does not start")
    asked = llm.get("async_scheduling", False)
    config = Some(scheduler_config=Some(async_scheduling=asked and KIND != llm.get("ignores")))
    runner = type(CLASSES[KIND], (), {"__module__": HOMES[KIND]})()
    if KIND == "fork":
        home = "reference" if "KUNLUN_HOSTVEC" in os.environ else "launchers"
        buffers = type("DeviceBuffer" if HIDDEN != llm.get("sees", False) else "UvaBuffer", (), {})
        sys.modules["vllm.v1.worker.gpu"] = Some(buffer_utils=Some(UvaBuffer=buffers))
        def site(): pass
        site.__module__ = f"vllm.v1.worker.gpu.kunlun.{llm.get('sites', home)}.x"
        runner.kunlun_plan = Some(backend=llm.get("backend", "torch"), targets={0: site})
    return Some(llm_engine=Some(vllm_config=Some(**vars(config))), runner=runner, drafts="draft" in llm)

HIDDEN = False

def hide_views():
    global HIDDEN
    HIDDEN = True

def model_runner(llm):
    return llm.runner

def ask(llm, call, models):
    with (HERE / "asked").open("a") as out:
        out.write(f"{KIND} {call.get('name', '')} {os.getpid()} {llm.drafts}\\n")
    says = call["says"].get(KIND, [])
    if KIND == "fork":
        # The tree's own part in an answer, for faults.
        for place in sys.path:
            part = pathlib.Path(place) / "vllm" / "part.py"
            if part.is_file():
                found = {}
                exec(part.read_text(), found)
                says = found["change"](says)
    if says == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if says == "hang":
        time.sleep(600)
    if says == "raise":
        raise ValueError("a step failed")
    requests = [
        {"completions": [{"tokens": [*p, *says], "text": "", "finish": "length", "stop": None, "logprobs": None}],
         "prompt_logprobs": None, "cached": 0}
        for p in call["prompts"]
    ]
    return {"requests": requests, "counters": call.get("counters", {}).get(KIND, {})}
"""

MODELS = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
if not (pathlib.Path(__file__).parent / "no models").exists():
    (folder / "made").touch()
else:
    raise SystemExit("no space left")
"""


def make(folder: Path, scenarios: list[dict[str, Any]]) -> Content:
    """A content with these scenarios: {"name", "llm", "cases": [{"name", "calls", ...}]}, the rest by default."""
    content = matrixkit.make(folder)
    e2e = content.parity / "e2e"
    e2e.mkdir()
    for name in ("__init__.py", "chain.py", "serve.py"):
        shutil.copy(REPO / "tests" / "parity" / "e2e" / name, e2e)
    (e2e / "engine.py").write_text(ENGINE)
    (e2e / "models.py").write_text(MODELS)
    (content.parity / "interpreter.py").touch()
    whole = [_filled(scenario) for scenario in scenarios]
    (e2e / "scenarios.py").write_text(f"import json\nprint(json.dumps({whole!r}))\n")
    return content


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    cases = [
        {"oracles": ["v1"], "ranges": {}, "unlike": None, "known": [], **case} for case in given.pop("cases", [CASE])
    ]
    return {"llm": {}, "env": {}, "ranks": 1, "hide_views": False, "cannot": None, "cases": cases, **given}


def scenario(name: str, *cases: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As `scenarios.py` says one."""
    return _filled({"name": name, "cases": list(cases), **more})


def call(name: str = "", says: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "prompts": [[1, 2], [3]], "says": says or {}, **more}


def case(name: str, says: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    calls = more.pop("calls", [call(name, says)])
    return {"name": name, "calls": calls, **more}


CASE = case("plain")


def asked(content: Content) -> list[list[str]]:
    """Who was asked what, in which process, with drafts or without; and forget it."""
    file = content.parity / "e2e" / "asked"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [line.split(" ") for line in lines]


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
