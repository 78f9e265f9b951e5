"""A tier of the matrix: its tests under each setting of the switches, divided among workers."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kunlunfork.apply import Outcome
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import schedule, workers
from kunlunfork.matrix import times as recorded
from kunlunfork.matrix.cells import ERROR, Cell, Run
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.selection import Selection, spread, unit_of
from kunlunfork.matrix.settings import Setting
from kunlunfork.matrix.tiers import Tier
from kunlunfork.matrix.workers import Worker
from kunlunfork.progress import Progress

BACKENDS = ("torch", "reference", "fused")


@dataclass(frozen=True)
class Request:
    """What to run. `random`: random cases a site, beside the named ones; `expression`: pytest's -k. Of the step tier:
    `steps` of each scenario, and `traces`, the folder for those that fail."""

    device: str
    settings: tuple[Setting, ...]
    backends: tuple[str, ...]
    processes: int
    random: int
    seed: int
    expression: str | None = None
    steps: int = 60
    traces: Path = Path("traces")


def machine() -> str:
    """The kind of machine, not its name."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


class Plan(Protocol):
    """Told once of a tier how many will run; `of`: of what (see `results.Writer.tier`)."""

    def __call__(self, tier: str, count: int, of: str = ...) -> None: ...


@dataclass(frozen=True)
class Log:
    """Who is told of a tier's cells. `ended`: of each cell, when it has ended."""

    planned: Plan
    ended: Callable[[Cell], None]


def run(
    content: Content,
    engine: Engine,
    tree: Outcome,
    shared: Run,
    tier: Tier,
    request: Request,
    selection: Selection,
    times: Path,
    log: Log,
    progress: Progress,
) -> None:
    """Run the cells of a selection and tell `log` of each; where the run is interrupted, of those that had ended.

    shared: what all cells of the run share; the tier is set here. times: the cache's own record of seconds by unit,
    read to balance the work and brought up to date at the end.

    Raises:
        ForkError: the tests cannot be collected, or the expression or the selection names none.
    """
    shared = replace(shared, tier=tier.name)
    offs = {s.name: s.off for s in request.settings}
    with tempfile.TemporaryDirectory(prefix="kunlunfork-matrix-") as scratch:
        folder = Path(scratch)
        known = {**selection.seconds, **recorded.read_or_guess(times)}
        team = [
            Worker(folder / f"{i}.jsonl", folder / f"{i}.log", folder / f"{i}.json") for i in range(request.processes)
        ]
        seen: list[Cell] = []

        def tell(lines: Sequence[Mapping[str, Any]]) -> None:
            for line in lines:
                seen.append(_cell(shared, offs, line))
                log.ended(seen[-1])

        try:
            _collect(content, engine, tree, tier, request, team, folder, progress)
            chosen = selection.choose(tier.name, team[0].found or [])
            log.planned(tier.name, len(chosen))
            _follow(team, spread(tier.name, chosen, known, len(team)), tell, progress)
            for worker in team:
                tell(worker.missing())
        finally:
            workers.stop(team)
            for worker in team:
                worker.poll()
                tell(worker.fresh())
        recorded.write(times, {**known, **schedule.learn(_whole_units(tier.name, seen, team[0].found or []))})


def _whole_units(tier: str, seen: Sequence[Cell], found: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """The cells of units all of whose cells ran: less than that says little of what the unit takes."""
    wanted = Counter(unit_of(tier, test) for test in found)
    have = Counter(cell.unit for cell in seen if cell.outcome != ERROR)
    return [cell for cell in seen if have[cell.unit] == wanted[cell.unit]]


def _collect(
    content: Content, engine: Engine, tree: Outcome, tier: Tier, request: Request, team: Sequence[Worker],
    folder: Path, progress: Progress,
) -> None:  # fmt: skip
    env = workers.environ(engine, (tree.root, engine.triton, content.parity), _variables(request))
    arguments = ["-k", request.expression] if request.expression else []
    argv = workers.command(engine, tier.tests(content), [*arguments, *tier.arguments(content)])
    for worker in team:
        workers.start(worker, argv, env, folder)
    with progress.task("collecting the parity tests", None):
        workers.watch(team, lambda done: None, lambda: all(w.found is not None for w in team))
    workers.check_collected(team)
    if not team[0].found:
        raise ForkError(f"no parity test matches {request.expression!r}", fix="see pytest's -k")


def _follow(
    team: Sequence[Worker],
    shares: Sequence[list[dict[str, Any]]],
    tell: Callable[[Sequence[Mapping[str, Any]]], None],
    progress: Progress,
) -> None:
    for worker, share in zip(team, shares, strict=True):
        worker.give(share)
    total = sum(map(len, shares))

    with progress.task(f"running {total} cells", total) as shown:

        def look(done: int) -> None:
            for worker in team:
                tell(worker.fresh())
            shown(done)

        workers.watch(team, look, lambda: False)


def _variables(request: Request) -> dict[str, str]:
    return {
        "KUNLUN_MATRIX_SETTINGS": json.dumps({s.name: s.environ() for s in request.settings}),
        "KUNLUN_MATRIX_BACKENDS": ",".join(request.backends),
        "KUNLUN_PARITY_N": str(request.random),
        "KUNLUN_PARITY_SEED": str(request.seed),
        "KUNLUN_STEP_STEPS": str(request.steps),
        "KUNLUN_STEP_TRACES": str(request.traces),
        # The runner's sets of names go round alike in every process.
        "PYTHONHASHSEED": "0",
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
        upstream=line.get("upstream"),
        tensor=line.get("tensor"),
        index=None if line.get("index") is None else tuple(line["index"]),
    )
