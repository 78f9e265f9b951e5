"""`bench rebase`: small edits moved to other releases by kunlunfork and by other tools, and how many arrived."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork.bench import machine, rebasecases, rebaseoracle, rebasetools
from kunlunfork.bench.rebasetools import Job, Outcome
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.progress import Progress
from kunlunfork.rebase.ladder import Releases
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store

VERDICTS = (rebaseoracle.RIGHT, rebaseoracle.DOUBTFUL, rebaseoracle.WRONG, "refused")
OURS = "kunlunfork"


@dataclass
class Tally:
    """What a tool did with the edits; `ways` and `kinds` count the same by how it was done and by kind of edit."""

    seconds: float = 0.0
    total: Counter[str] = field(default_factory=Counter)
    ways: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, job: Job, outcome: Outcome, verdict: str) -> None:
        self.total[verdict] += 1
        self.ways[outcome.way, verdict] += 1
        self.kinds[job.case.kind, verdict] += 1

    def as_json(self) -> dict[str, Any]:
        return {
            **{verdict: self.total[verdict] for verdict in VERDICTS},
            "seconds": round(self.seconds, 2),
            "ways": _grouped(self.ways),
            "kinds": _grouped(self.kinds),
        }


def _grouped(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (name, verdict), count in sorted(counts.items()):
        found.setdefault(name, {})[verdict] = count
    return found


@dataclass(frozen=True)
class Plan:
    """What to measure. `start` is the release that the edits are made in, `releases` those that they go to.

    With `ladder` they also go to the last of these by way of the releases in between.
    """

    start: str
    releases: tuple[str, ...]
    kinds: tuple[str, ...]
    count: int
    seed: int
    ladder: bool


def run(plan: Plan, content: Content, settings: Settings, folder: Path) -> dict[str, Any]:
    """Measure it, in a folder of its own below `folder` that is removed at the end.

    Returns:
        the report, ready for JSON; times are in seconds.

    Raises:
        ForkError: a release cannot be had, or is no newer than the first.
    """
    store = Store(settings.cache.store)
    releases = Releases(content, store, settings)
    rungs = releases.between(plan.start, plan.releases[-1]) if plan.ladder else ()
    for version in plan.releases:
        releases.between(plan.start, version)
    tools = rebasetools.tools()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["kunlunfork", *sys.argv[1:]],
        "commit": machine.clone_commit(content.root),
        "machine": asdict(machine.look(folder)),
        **{**asdict(plan), "releases": [*plan.releases], "kinds": [*plan.kinds]},
    }
    with tempfile.TemporaryDirectory(prefix=".kunlunfork-bench-", dir=folder) as name, _no_collecting():
        old = _files(releases, store, plan.start)
        leaps = []
        cases = []
        for version in plan.releases:
            new = _files(releases, store, version)
            cases = rebasecases.draw(old, new, plan.kinds, plan.count, plan.seed)
            if not cases:
                raise ForkError(f"vLLM {plan.start} and {version} have no function in common that could be edited")
            jobs = [Job(case, case.old, case.ours, new[case.function.path]) for case in cases]
            tallies = compare(jobs, tools, Path(name), settings.progress, f"{plan.start} -> {version}")
            leaps.append({"onto": version, "cases": len(jobs), "tools": {n: t.as_json() for n, t in tallies.items()}})
        report["leaps"] = leaps
        if plan.ladder:
            files = {version: _files(releases, store, version) for version in rungs}
            report["ladder"] = climb(cases, files, tools, Path(name), settings.progress)
    report["load_after"] = machine.load()
    return report


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Syntax trees are large and have no cycles: looking for garbage in them takes most of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _files(releases: Releases, store: Store, version: str) -> dict[bytes, bytes]:
    """vLLM's own Python files in a release, by path."""
    entries = store.entries(releases.base(version).tree)
    wanted = {path: e for path, e in entries.items() if path.startswith(b"vllm/") and path.endswith(b".py")}
    return {path: data for path, (_, data) in store.read(wanted).items()}


def compare(
    jobs: Sequence[Job], tools: Mapping[str, rebasetools.Tool], scratch: Path, progress: Progress, title: str
) -> dict[str, Tally]:
    """Let each tool do all jobs, and judge what it made."""
    known: dict[tuple[int, bytes], str] = {}
    found = {}
    for name, tool in tools.items():
        progress.note(f"{title}: {name}")
        found[name] = tally = Tally()
        for job, outcome, verdict in _judged(jobs, tool, scratch, tally, known):
            tally.add(job, outcome, verdict)
    return found


def _judged(
    jobs: Sequence[Job],
    tool: rebasetools.Tool,
    scratch: Path,
    tally: Tally,
    known: dict[tuple[int, bytes], str],
) -> Iterator[tuple[Job, Outcome, str]]:
    start = time.perf_counter()
    outcomes = tool(jobs, scratch)
    tally.seconds += time.perf_counter() - start
    for number, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        verdict = "refused"
        if outcome.result is not None:
            # Mostly all tools make the same: each file is judged once.
            key = (number, outcome.result)
            if key not in known:
                known[key] = rebaseoracle.verdict(job.case, job.new, outcome.result)
            verdict = known[key]
        yield job, outcome, verdict


def climb(
    cases: Sequence[rebasecases.Case],
    files: Mapping[str, Mapping[bytes, bytes]],
    tools: Mapping[str, rebasetools.Tool],
    scratch: Path,
    progress: Progress,
) -> dict[str, Any]:
    """The same edits release by release: what is refused or wrong on a step goes no further.

    An edit that upstream has made as well has arrived, and there is nothing left of it to carry.

    Args:
        files: the releases in order, each with its files.
    """
    result: dict[str, Any] = {"cases": len(cases), "tools": {}}
    for name in (OURS, "git 3-way"):
        alive = list(cases)
        settled = 0
        steps = {}
        for version, new in files.items():
            progress.note(f"ladder to {version}: {name}")
            tally = Tally()
            gone = [case for case in alive if case.function.path not in new]
            jobs = [Job(c, c.old, c.ours, new[c.function.path]) for c in alive if c.function.path in new]
            alive = []
            for job, outcome, verdict in _judged(jobs, tools[name], scratch, tally, {}):
                tally.add(job, outcome, verdict)
                if outcome.result is None or verdict == rebaseoracle.WRONG:
                    continue
                if outcome.result == job.new:
                    settled += 1
                else:
                    alive.append(dataclasses.replace(job.case, old=job.new, ours=outcome.result))
            tally.total["refused"] += len(gone)
            steps[version] = tally.as_json()
        ends = Counter({v: sum(step[v] for step in steps.values()) for v in ("wrong", "refused")})
        result["tools"][name] = {"arrived": len(alive) + settled, "upstreamed": settled, **ends, "steps": steps}
    return result


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def leaps_table(report: Mapping[str, Any]) -> Table:
    """Every tool on every release."""
    body = []
    for leap in report["leaps"]:
        for name, t in leap["tools"].items():
            made = leap["cases"] - t["refused"]
            precision = f"{100 * (made - t['wrong']) / made:.2f} %" if made else ""
            body.append((f"-> {leap['onto']}", name, *(str(t[v]) for v in VERDICTS), precision, f"{t['seconds']:.1f}"))
    return ("onto", "tool", *VERDICTS, "precision", "s"), body


def ways_table(report: Mapping[str, Any]) -> Table:
    """How kunlunfork came to its results."""
    body = [
        (f"-> {leap['onto']}", way, *(str(counts.get(v, 0)) for v in VERDICTS))
        for leap in report["leaps"]
        for way, counts in leap["tools"][OURS]["ways"].items()
    ]
    return ("onto", "by kunlunfork", *VERDICTS), body


def kinds_table(report: Mapping[str, Any]) -> Table:
    """kunlunfork and git by kind of edit, on the last release."""
    leap = report["leaps"][-1]
    body = []
    for kind in leap["tools"][OURS]["kinds"]:
        for name in (OURS, "git 3-way"):
            counts = leap["tools"][name]["kinds"].get(kind, {})
            body.append((kind, name, *(str(counts.get(v, 0)) for v in VERDICTS)))
    return (f"-> {leap['onto']}", "tool", *VERDICTS), body


def ladder_table(report: Mapping[str, Any]) -> Table:
    """What became of the edits on each step of the ladder."""
    body = [
        (name, f"-> {version}", *(str(step[v]) for v in VERDICTS))
        for name, told in report["ladder"]["tools"].items()
        for version, step in told["steps"].items()
    ]
    return ("tool", "step", *VERDICTS), body
