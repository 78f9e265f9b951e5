"""The tier `upstream`: upstream's own tests, in upstream's tree and in the fork's.

What passes in upstream's tree must pass in the fork's. A test that neither passes (it wants a GPU, a model, a network)
says nothing and counts as skipped; one that only the fork passes is told.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import upstreamrun
from kunlunfork.matrix.cells import ERROR, FAILED, PASSED, SKIPPED, Cell, Run
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.ops import Log
from kunlunfork.matrix.results import LAUNCHERS
from kunlunfork.matrix.selection import Selection
from kunlunfork.matrix.upstreamrun import NEVER, Told
from kunlunfork.progress import Progress

TIER = "upstream"
# Seconds for one file in one tree.
LIMIT = 600.0
_FORK, _UPSTREAM = "fork", "upstream"


@dataclass(frozen=True)
class Place:
    """Where the tests run. `tests`: the folder that holds upstream's `tests`; `tree`: of the fork; `tools`: a folder
    with what they import."""

    engine: Engine
    tests: Path
    tree: Path
    tools: Path


def run(
    content: Content, place: Place, files: Sequence[str], shared: Run, selection: Selection, processes: int,
    expression: str | None, log: Log, progress: Progress, *, limit: float = LIMIT,
) -> None:  # fmt: skip
    """Run the files of a selection in both trees; tell `log` of the cells of each file when both have ended.

    expression: only files whose path has it. limit: seconds for one file in one tree.

    Raises:
        ForkError: no file is left.
    """
    shared = replace(shared, tier=TIER)
    chosen = _chosen(files, selection, expression)
    log.planned(TIER, len(chosen), LAUNCHERS)
    with (
        tempfile.TemporaryDirectory(prefix="kunlunfork-matrix-") as scratch,
        ThreadPoolExecutor(max(1, processes // 2)) as pool,
        upstreamrun.Processes() as children,
        progress.task(f"running {len(chosen)} files of upstream's tests", len(chosen)) as done,
    ):

        def both(number: int, file: str) -> list[Cell]:
            return _compare(content, place, children, Path(scratch), number, file, shared, limit)

        jobs = [pool.submit(both, number, file) for number, file in enumerate(chosen)]
        try:
            for count, job in enumerate(as_completed(jobs), 1):
                for cell in job.result():
                    log.ended(cell)
                done(count)
        finally:
            for job in jobs:
                job.cancel()


def _chosen(files: Sequence[str], selection: Selection, expression: str | None) -> list[str]:
    names = {name.partition("::")[0] for name in selection.names}
    described = [
        {"test": file, "launcher": file, "case": "*"}
        for file in files
        if (not names or file in names) and (expression is None or expression in file)
    ]
    if not described:
        raise ForkError(
            "none of upstream's tests is left", found=", ".join(sorted(names)) or str(expression),
            expected="a file that ci/matrix.toml names, such as " + files[0],
        )  # fmt: skip
    done = {test.partition("::")[0] for test in selection.done.get(TIER, frozenset())}
    whole = replace(selection, names=(), done={TIER: frozenset(done)})
    return [str(test["test"]) for test in whole.choose(TIER, described)]


def _compare(
    content: Content, place: Place, children: upstreamrun.Processes, scratch: Path, number: int, file: str,
    shared: Run, limit: float,
) -> list[Cell]:  # fmt: skip
    """Both trees, one after the other; again where the fork lost a test, since some of upstream's are flaky."""

    def once(tree: str, turn: int) -> dict[str, Told]:
        out = scratch / f"{number}-{tree}-{turn}.jsonl"
        path = [content.parity / "upstream", *([place.tree] if tree == _FORK else []), place.tools]
        trouble = children.run(
            upstreamrun.command(place.engine, file), upstreamrun.variables(place.engine, path, out), place.tests,
            out.with_suffix(".log"), limit,
        )  # fmt: skip
        return upstreamrun.read(out, trouble)

    theirs, ours = once(_UPSTREAM, 0), once(_FORK, 0)
    if any(t.passed and not ours.get(test, _MISSING).passed for test, t in theirs.items()):
        again = once(_UPSTREAM, 1)
        # A test that a second process never came to is no flaky one: it stays lost.
        theirs = {test: again.get(test, t) if t.passed else t for test, t in theirs.items()}
        ours = _better(ours, once(_FORK, 1))
    return cells(file, theirs, ours, shared, time.time())


_MISSING = Told(NEVER, 0.0, "")


def _better(one: Mapping[str, Told], two: Mapping[str, Told]) -> dict[str, Told]:
    return {test: one[test] if test in one and one[test].passed else told for test, told in {**one, **two}.items()}


def cells(
    file: str, theirs: Mapping[str, Told], ours: Mapping[str, Told], shared: Run, finished: float
) -> list[Cell]:  # fmt: skip
    """One cell a test; one that says so where there is no test."""
    if not theirs and not ours:
        return [Cell(
            run=shared, test=file, case="(no test)", outcome=ERROR, launcher=file, finished=finished,
            message="no test of it was collected in either tree",
        )]  # fmt: skip
    found = []
    for test in dict.fromkeys([*theirs, *ours]):
        up, fork = theirs.get(test, _MISSING), ours.get(test, _MISSING)
        outcome, message = _judge(up, fork)
        found.append(Cell(
            run=shared, test=test, case=test.removeprefix(file).removeprefix("::") or "(import)", outcome=outcome,
            launcher=file, seconds=fork.seconds, finished=finished, message=message, upstream=up.seconds,
        ))  # fmt: skip
    return found


def _judge(up: Told, fork: Told) -> tuple[str, str | None]:
    if up.passed and fork.passed:
        return PASSED, None
    if up.passed:
        return FAILED, f"passes in upstream's tree; in the fork's: {_said(fork)}"
    if fork.passed:
        return PASSED, f"passes only in the fork's tree; in upstream's: {_said(up)}"
    also = f"; in the fork's: {_said(fork)}" if fork != up and fork is not _MISSING else ""
    return SKIPPED, f"passes in neither tree: {_said(up)}{also}"


def _said(told: Told) -> str:
    return f"{told.outcome}: {told.message}" if told.message else told.outcome
