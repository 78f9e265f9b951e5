"""The tier `e2e`: whole engines of the fork against upstream's, asked the same (`tests/parity/e2e`).

Upstream's answers come first and are kept; then the fork's engines run under each setting. Engines run one after
another in as many processes as are asked for. A case in which a process fails, dies or hangs costs that case: the rest
of its engine's cases run in another process.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork.apply import Outcome
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import e2escenarios
from kunlunfork.matrix.cells import ERROR, FAILED, PASSED, SKIPPED, Cell, Run
from kunlunfork.matrix.e2ecompare import Answer, compare, unsound
from kunlunfork.matrix.e2eengines import FORK, V1, V2, Lost, Place, Server, make_models
from kunlunfork.matrix.e2erecords import Records, engine_of, models
from kunlunfork.matrix.e2escenarios import BACKEND, Case, Planned, Scenario
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.ops import Log, Request
from kunlunfork.matrix.selection import Selection
from kunlunfork.matrix.settings import Setting
from kunlunfork.progress import Progress

TIER = "e2e"


@dataclass(frozen=True)
class _Job:
    """Cases that one engine is asked. `setting`: of the fork's."""

    kind: str
    scenario: Scenario
    cases: tuple[Case, ...]
    setting: Setting | None = None


@dataclass(frozen=True)
class _Ended:
    """A case of a job: the answer, or `told`, why there is none."""

    job: _Job
    case: Case
    answer: Answer | None
    told: str = ""


def run(
    content: Content, engine: Engine, tree: Outcome, shared: Run, request: Request, selection: Selection, log: Log,
    progress: Progress,
) -> None:  # fmt: skip
    """Run the cells of a selection and tell `log` of each.

    request: of it the device, settings, backends, processes and the expression, a part of the cells' names.

    Raises:
        ForkError: the scenarios or the models cannot be made, or the expression or the selection names no cell.
    """
    shared = replace(shared, tier=TIER)
    chosen = _chosen(e2escenarios.load(content, engine, request.device), request, selection)
    log.planned(TIER, len(chosen))
    root = engine.root / "e2e"
    with tempfile.TemporaryDirectory(prefix="kunlunfork-e2e-") as scratch:
        place = Place(engine, tree.root, content.parity, models(root, content.parity))
        if chosen and not place.models.is_dir():
            trouble = make_models(engine, content.parity, place.models, Path(scratch) / "models.log")
            if trouble:
                raise ForkError("the models of the tier e2e cannot be made", details=trouble.splitlines()[-8:])
        execute(place, Records(root, content.parity), shared, chosen, Path(scratch), log, request.processes, progress)


def execute(
    place: Place, records: Records, shared: Run, chosen: Sequence[Planned], scratch: Path, log: Log, processes: int,
    progress: Progress,
) -> None:  # fmt: skip
    """Run planned cells, those that cannot run included, and tell `log` of each. scratch: a folder for logs."""
    _Tier(place, records, shared, chosen, scratch, log).run(processes, progress)


def _chosen(scenarios: Sequence[Scenario], request: Request, selection: Selection) -> list[Planned]:
    planned = e2escenarios.cells(scenarios, request.settings) if BACKEND in request.backends else ()
    found = {p.test: p for p in planned if request.expression is None or request.expression in p.test}
    if not found:
        raise ForkError(
            f"no cell of the tier {TIER} matches {request.expression!r}",
            found=f"--backend {','.join(request.backends)}, --switches {' '.join(s.name for s in request.settings)}",
            expected=f"backend {BACKEND}, one of the settings {' '.join(e2escenarios.SETTINGS)}, a part of a name",
        )
    described = [{"test": p.test, "launcher": p.launcher, "case": p.described} for p in found.values()]
    return [found[str(test["test"])] for test in selection.choose(TIER, described)]


class _Tier:
    def __init__(
        self, place: Place, records: Records, shared: Run, chosen: Sequence[Planned], scratch: Path, log: Log
    ) -> None:
        self.place = place
        self.records = records
        self.shared = shared
        self.chosen = [p for p in chosen if p.scenario.cannot is None]
        self.skipped = [p for p in chosen if p.scenario.cannot is not None]
        self.scratch = scratch
        self.log = log
        # (kind, scenario, case) -> upstream's answer, or why there is none.
        self.oracles: dict[tuple[str, str, str], Answer | str] = {}
        self.planned = {(p.scenario.name, p.case.name, p.setting.name): p for p in self.chosen}

    def run(self, processes: int, progress: Progress) -> None:
        for planned in self.skipped:
            self.log.ended(self._cell(planned, SKIPPED, message=planned.scenario.cannot))
        for kind in (V1, V2):
            jobs = self._oracle_jobs(kind)
            count = sum(len(job.cases) for job in jobs)
            if count:
                label = f"asking upstream's {kind.upper()} about {count} cases"
                self._phase(jobs, count, processes, self._told_by_upstream, label, progress)
        jobs = self._fork_jobs()
        self._phase(
            jobs, len(self.chosen), processes, self._told_by_fork, f"running {len(self.chosen)} cells", progress
        )

    def _oracle_jobs(self, kind: str) -> list[_Job]:
        """What is not recorded of an oracle, a job an engine."""
        wanted: dict[str, dict[str, Case]] = {}
        scenarios = {p.scenario.name: p.scenario for p in self.chosen}
        for planned in self.chosen:
            if kind in planned.case.oracles:
                cases = wanted.setdefault(planned.scenario.name, {})
                if planned.case.unlike is not None:
                    other = planned.scenario.case(planned.case.unlike)
                    cases.setdefault(other.name, other)
                cases.setdefault(planned.case.name, planned.case)
        jobs = []
        for name, cases in wanted.items():
            left = []
            for case in cases.values():
                known = self.records.get(kind, scenarios[name], case)
                if known is None:
                    left.append(case)
                else:
                    self.oracles[kind, name, case.name] = known
            if left:
                jobs.append(_Job(kind, scenarios[name], tuple(left)))
        return jobs

    def _fork_jobs(self) -> list[_Job]:
        groups: dict[tuple[str, str], list[Planned]] = {}
        for planned in self.chosen:
            groups.setdefault((planned.scenario.name, planned.setting.name), []).append(planned)
        return [
            _Job(FORK, group[0].scenario, tuple(p.case for p in group), group[0].setting) for group in groups.values()
        ]

    def _phase(
        self, jobs: Sequence[_Job], count: int, processes: int, told: Callable[[_Ended], None], label: str,
        progress: Progress,
    ) -> None:  # fmt: skip
        """Run jobs in processes side by side; `told` is called here, of every case."""
        if not jobs:
            return
        waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        ended: queue.SimpleQueue[_Ended | BaseException] = queue.SimpleQueue()
        kind = jobs[0].kind
        servers = [Server(self.place, kind, self.scratch / f"{kind}-{i}.log") for i in range(min(processes, len(jobs)))]
        threads = [threading.Thread(target=_work, args=(s, waiting, ended), daemon=True) for s in servers]
        try:
            for thread in threads:
                thread.start()
            with progress.task(label, count) as shown:
                for done in range(1, count + 1):
                    found = ended.get()
                    if isinstance(found, BaseException):
                        raise found
                    told(found)
                    shown(done)
        finally:
            for server in servers:
                server.close()
            for thread in threads:
                thread.join()

    def _told_by_upstream(self, ended: _Ended) -> None:
        job, case = ended.job, ended.case
        key = job.kind, job.scenario.name, case.name
        if ended.answer is None:
            self.oracles[key] = f"upstream's {job.kind.upper()} cannot say: {ended.told}"
            return
        self.records.put(job.kind, job.scenario, case, ended.answer)
        self.oracles[key] = ended.answer

    def _told_by_fork(self, ended: _Ended) -> None:
        assert ended.job.setting is not None
        planned = self.planned[ended.job.scenario.name, ended.case.name, ended.job.setting.name]
        self.log.ended(self._judged(planned, ended))

    def _judged(self, planned: Planned, ended: _Ended) -> Cell:
        scenario, case = planned.scenario, planned.case
        oracles: dict[str, Answer] = {}
        for kind in case.oracles:
            answer = self.oracles[kind, scenario.name, case.name]
            if isinstance(answer, Answer):
                other = self.oracles.get((kind, scenario.name, case.unlike)) if case.unlike else None
                trouble = unsound(scenario, case, kind, answer, other if isinstance(other, Answer) else None)
                if trouble is None:
                    oracles[kind] = answer
                    continue
                answer = trouble
            return self._cell(planned, ERROR, message=answer)
        upstream = round(sum(o.seconds for o in oracles.values()), 3)
        if ended.answer is None:
            return self._cell(planned, ERROR, message=ended.told, upstream=upstream)
        found, error = compare(scenario, case, planned.setting.name, ended.answer, oracles)
        cell = self._cell(planned, FAILED if found else PASSED, upstream=upstream)
        runners = ended.answer.about.get("runners") or [{}]
        return replace(
            cell, seconds=round(ended.answer.seconds, 3), error=error or None, ran=runners[0].get("backend"),
            message=found.message if found else None, tensor=found.where if found else None,
            index=found.index if found else None,
        )  # fmt: skip

    def _cell(self, planned: Planned, outcome: str, message: str | None = None, upstream: float | None = None) -> Cell:
        return Cell(
            run=self.shared, test=planned.test, case=planned.described, outcome=outcome, launcher=planned.launcher,
            backend=BACKEND, setting=planned.setting.name, off=planned.setting.off, finished=round(time.time(), 3),
            message=message, upstream=upstream,
        )  # fmt: skip


def _work(
    server: Server, waiting: queue.SimpleQueue[_Job], ended: queue.SimpleQueue[_Ended | BaseException]
) -> None:  # fmt: skip
    """Run jobs until none is left; of each case of a job exactly one `_Ended` is put."""
    try:
        with server:
            hidden = False
            while True:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                # Of the fork's alone, and for the rest of its process.
                hides = job.kind == FORK and job.scenario.hide_views
                if hidden and not hides:
                    server.renew()
                hidden = hides
                _do(server, job, ended.put)
    except BaseException as e:  # noqa: BLE001 - raised again by who waits
        ended.put(e)


def _do(server: Server, job: _Job, ended: Callable[[_Ended], None]) -> None:
    left = list(job.cases)
    # The seconds that an engine took to start are its first case's.
    while left:
        about: Mapping[str, object] | None = None
        spent = 0.0
        try:
            for answer in server.job(_asked(job, left)):
                if "started" in answer:
                    about, spent = answer["started"], answer["seconds"]
                    continue
                assert about is not None
                case = left.pop(0)
                ended(_Ended(job, case, Answer(about, answer["said"], answer["seconds"] + spent)))
                spent = 0.0
        except Lost as e:
            # An engine that does not start does not for the next case either.
            lost = left[:1] if about is not None else left[:]
            del left[: len(lost)]
            for case in lost:
                ended(_Ended(job, case, None, e.told))


def _asked(job: _Job, cases: Sequence[Case]) -> dict[str, object]:
    asked = dict(engine_of(job.kind, job.scenario))
    if job.setting is not None:
        asked["env"] = {**job.scenario.env, **job.setting.environ()}
        asked["hide_views"] = job.scenario.hide_views
    return {**asked, "cases": [{"name": case.name, "calls": case.calls} for case in cases]}
