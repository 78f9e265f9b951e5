"""The ops tier: every site, every case, under each setting of the switches."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork.apply import Outcome
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import workers
from kunlunfork.matrix.cells import Cell, Run
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.settings import Setting
from kunlunfork.matrix.workers import Worker
from kunlunfork.progress import Progress

TIER = "ops"
BACKENDS = ("torch", "reference")
# Tests that belong to no site module.
REST = "*"


@dataclass(frozen=True)
class Request:
    """What to run. `random`: random cases a site, beside the named ones; `expression`: pytest's -k."""

    device: str
    settings: tuple[Setting, ...]
    backends: tuple[str, ...]
    processes: int
    random: int
    seed: int
    expression: str | None = None


def site_modules(content: Content) -> tuple[str, ...]:
    """Names of the modules that define sites, by their files.

    Raises:
        ForkError: there are none.
    """
    found = tuple(sorted(p.stem for p in (content.parity / "sites").glob("*.py") if p.stem != "__init__"))
    if not found:
        raise ForkError(f"{content.parity} holds no parity tests", expected="sites/*.py")
    return found


def machine() -> str:
    """The kind of machine, not its name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def run(
    content: Content,
    engine: Engine,
    tree: Outcome,
    request: Request,
    times: Path,
    sink: Callable[[Cell], None],
    progress: Progress,
) -> None:
    """Run the cells and hand them to `sink`; where the run is interrupted, those that had ended.

    times: a JSON file of seconds by site module, read to balance the work and written after a whole run.

    Raises:
        ForkError: the tests cannot be collected, or the expression selects none.
    """
    shared = Run(
        pin=tree.version, device=request.device, tier=TIER, seed=request.seed, series=tree.series_hash,
        overlay=tree.overlay_hash, versions=dict(engine.versions), machine=machine(),
    )  # fmt: skip
    offs = {s.name: s.off for s in request.settings}
    with tempfile.TemporaryDirectory(prefix="kunlunfork-matrix-") as scratch:
        folder = Path(scratch)
        modules = (*site_modules(content), REST)
        divided = workers.shares(modules, _times(times), request.processes)
        team = [Worker(share, folder / f"{i}.jsonl", folder / f"{i}.log") for i, share in enumerate(divided)]
        whole = False
        try:
            _follow(content, engine, tree, request, team, folder, progress)
            whole = True
        finally:
            workers.stop(team)
            for worker in team:
                for line in worker.lines(missing=whole):
                    sink(_cell(shared, offs, line))
        if request.expression is None:
            times.parent.mkdir(parents=True, exist_ok=True)
            times.write_text(json.dumps(_seconds(team), indent=1), encoding="utf-8")


def _follow(
    content: Content, engine: Engine, tree: Outcome, request: Request, team: Sequence[Worker], folder: Path,
    progress: Progress,
) -> None:  # fmt: skip
    env = workers.environ(engine, (tree.root, engine.triton, content.parity), _variables(request))
    arguments = ["-k", request.expression] if request.expression else []
    argv = workers.command(engine, content.parity, arguments)
    for worker in team:
        workers.start(worker, argv, env, folder)
    with progress.task("collecting the parity tests", None):
        workers.watch(team, lambda done: None, lambda: all(w.collected is not None for w in team))
    workers.check_collected(team)
    total = sum(len(w.collected or ()) for w in team)
    if not total:
        raise ForkError(f"no parity test matches {request.expression!r}", fix="see pytest's -k")
    with progress.task(f"running {total} cells", total) as shown:
        workers.watch(team, shown, lambda: False)


def _variables(request: Request) -> dict[str, str]:
    return {
        "KUNLUN_MATRIX_SETTINGS": json.dumps({s.name: s.environ() for s in request.settings}),
        "KUNLUN_MATRIX_BACKENDS": ",".join(request.backends),
        "KUNLUN_PARITY_N": str(request.random),
        "KUNLUN_PARITY_SEED": str(request.seed),
    }


def _cell(shared: Run, offs: Mapping[str, tuple[str, ...]], line: Mapping[str, Any]) -> Cell:
    setting = line["setting"]
    return Cell(
        run=shared,
        test=line["test"],
        case=line["case"],
        outcome=line["outcome"],
        sites=tuple(line["sites"]),
        launcher=line["launcher"],
        backend=line["backend"],
        ran=line.get("ran"),
        setting=setting,
        off=None if setting is None else offs[setting],
        error=line.get("error"),
        seconds=line.get("seconds", 0.0),
        finished=line.get("finished", 0.0),
        message=line.get("message"),
    )


def _times(path: Path) -> dict[str, float]:
    try:
        return {str(k): float(v) for k, v in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}  # a guess then; it only balances the work


def _seconds(team: Sequence[Worker]) -> dict[str, float]:
    """What each site module took: its cells, and upstream's runs of its cases, once each."""
    seconds: dict[str, float] = {}
    upstream: dict[tuple[str, str], float] = {}
    for worker in team:
        for line in worker.lines(missing=False):
            module = line["launcher"].partition(":")[0] or REST
            seconds[module] = seconds.get(module, 0.0) + line["seconds"]
            if line.get("upstream") is not None:
                upstream[line["launcher"], line["case"]] = line["upstream"]
    for (launcher, _), spent in upstream.items():
        seconds[launcher.partition(":")[0]] += spent
    return {module: round(spent, 3) for module, spent in sorted(seconds.items())}
