"""What the step tier does beside its cells: replay a trace, and show that it catches faults."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import definition, environment, trees, workers
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.faults import Fault
from kunlunfork.matrix.selftest import SURVIVED, Result, Verdict
from kunlunfork.progress import Progress
from kunlunfork.store import Store

_TICK = 0.2
KIND = "step"


@dataclass(frozen=True)
class Replayed:
    """`difference`: what the fork does differently, None where nothing is. `variables`: KUNLUN_* of its run."""

    difference: str | None
    variables: dict[str, str]
    steps: int
    requests: int
    kept: Path | None


def replay(
    content: Content, cache: Cache, version: str, device: str, trace: Path, shrink: float, python: Path | None,
    progress: Progress,
) -> Replayed:  # fmt: skip
    """Run both runners on a trace again; with `shrink` (seconds) make it smaller and write that beside it.

    Raises:
        ForkError: the file is no trace, or its steps cannot be run.
    """
    if not trace.is_file():
        raise ForkError(
            f"there is no trace {trace}", fix="traces that fail are written by: kunlunfork matrix run --tier step"
        )
    with tempfile.TemporaryDirectory(prefix="kunlunfork-step-") as scratch:
        out = Path(scratch) / "out.jsonl"
        arguments = [["step.replay", str(out), str(trace.absolute()), str(shrink)]]
        _run(content, cache, version, device, arguments, Path(scratch), python, progress, f"replaying {trace.name}")
        (answer,) = _lines([out])
    if "error" in answer:
        raise ForkError(f"{trace} cannot be replayed", found=answer["error"])
    kept = answer["kept"]
    return Replayed(
        answer["difference"], answer["variables"], answer["steps"], answer["requests"], Path(kept) if kept else None
    )


def selftest(
    content: Content, cache: Cache, version: str, device: str, jobs: int, expression: str | None,
    python: Path | None, progress: Progress, steps: int = 80, seed: int = 0,
) -> Result:  # fmt: skip
    """Put each fault of `tests/parity/step/faults.toml` into the fork's run of its scenarios; `expression`: part of
    their names.

    Raises:
        ForkError: the tier fails without a fault, or no fault matches.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kunlunfork-step-") as scratch:
        outs = [Path(scratch) / f"{i}.jsonl" for i in range(jobs)]
        arguments = [
            ["step.selftest", str(out), str(steps), str(seed), f"{i}/{jobs}", expression or ""]
            for i, out in enumerate(outs)
        ]
        _run(content, cache, version, device, arguments, Path(scratch), python, progress, "testing faults of steps")
        lines = _lines(outs)
    unsound = [line for line in lines if line["fault"] is None and line["outcome"] != SURVIVED]
    if unsound:
        raise ForkError(
            "the step tier fails without any fault",
            details=[f"{line['scenario']}: {line['message']}" for line in unsound],
            fix="mend that first: kunlunfork matrix run --tier step",
        )
    verdicts = tuple(_verdict(line) for line in lines if line["fault"] is not None)
    if not verdicts:
        raise ForkError(f"no fault of the step tier matches {expression!r}")
    return Result(tuple(sorted(verdicts, key=lambda v: (v.fault.file, v.fault.name))), time.monotonic() - began)


def _verdict(line: dict[str, Any]) -> Verdict:
    fault = Fault(line["fault"], KIND, line["file"], "", line["new"], (line["scenario"],))
    where = None if line.get("step") is None else f"{line['scenario']}, step {line['step']}"
    return Verdict(fault, line["outcome"], where or line["scenario"], line["message"], 1, line["seconds"])


def _run(
    content: Content, cache: Cache, version: str, device: str, arguments: Sequence[Sequence[str]], scratch: Path,
    python: Path | None, progress: Progress, what: str,
) -> None:  # fmt: skip
    """Run modules of the step tier in the fork tree, side by side. Raises ForkError where one fails."""
    pin = content.pin(version)
    engine = environment.ensure(definition.load(content, pin.version, device), cache, python, progress)
    with environment.exclusive(engine.root / "trees.lock", "runs cells in the same tree", progress):
        tree = trees.fork_tree(content, engine, Store(cache.store), pin.version, progress)
        env = workers.environ(engine, (tree.root, engine.triton, content.parity), {"PYTHONHASHSEED": "0"})
        logs = [scratch / f"{i}.log" for i in range(len(arguments))]
        children: list[subprocess.Popen[bytes]] = []
        try:
            for words, log in zip(arguments, logs, strict=True):
                with log.open("wb") as output:
                    children.append(_start(engine, words, scratch, env, output.fileno()))
            with progress.task(what, None):
                while any(child.poll() is None for child in children):
                    time.sleep(_TICK)
        finally:
            for child in children:
                child.kill()
                child.wait()
        for child, log in zip(children, logs, strict=True):
            if child.returncode:
                tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
                raise ForkError("the step tier cannot be run", details=tail, found=f"exit code {child.returncode}")


def _start(
    engine: Engine, words: Sequence[str], folder: Path, env: dict[str, str], output: int
) -> subprocess.Popen[bytes]:
    argv = [str(engine.python), "-m", *words]
    return subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _lines(files: Sequence[Path]) -> list[dict[str, Any]]:
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    return [json.loads(line) for line in text.splitlines()]
