"""Timing things that compete, in turns, so that a change of the machine's load meets all of them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from kunlunfork.progress import Progress


@dataclass(frozen=True)
class Reading:
    """Seconds: on the clock; of the processors in this process and the children that ended meanwhile; and of the
    processors in everything else on the machine, None where the system does not tell. What others took is what makes
    a wall time doubtful.
    """

    wall: float
    cpu: float
    others: float | None


@dataclass(frozen=True)
class Step:
    """One thing to time. `run` gets the folder of its round, which is empty when the round begins.

    `before` makes what it needs, outside of the time. What earlier steps of the round left is there too.
    """

    name: str
    what: str
    run: Callable[[Path], object]
    before: Callable[[Path], object] = field(default=lambda folder: None)


@dataclass(frozen=True)
class Timed:
    """A step's readings, one a round; that of the warm-up is kept apart."""

    step: Step
    warm_up: Reading
    rounds: tuple[Reading, ...]

    @property
    def median(self) -> float:
        return median(r.wall for r in self.rounds)

    @property
    def least(self) -> float:
        return min(r.wall for r in self.rounds)

    @property
    def cpu(self) -> float:
        return median(r.cpu for r in self.rounds)

    @property
    def others(self) -> float | None:
        """How many processors others kept busy, on average; by the median round."""
        known = [r.others / r.wall for r in self.rounds if r.others is not None]
        return median(known) if known else None


def _cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _busy() -> float | None:
    """Seconds that the machine's processors were not idle, all together since it started."""
    try:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    _user, _nice, _system, idle, wait, *_ = fields
    return (sum(fields) - idle - wait) / os.sysconf("SC_CLK_TCK")


def _read(step: Step, folder: Path) -> Reading:
    step.before(folder)
    # What was written until now goes to the disk now: else this step may have to wait for it.
    os.sync()
    busy, cpu, start = _busy(), _cpu(), time.perf_counter()
    step.run(folder)
    wall, cpu = time.perf_counter() - start, _cpu() - cpu
    after = _busy()
    others = None if busy is None or after is None else max(after - busy - cpu, 0.0)
    return Reading(wall, cpu, others)


def in_turns(
    steps: Sequence[Step], rounds: int, scratch: Path, check: Callable[[Path], object], progress: Progress
) -> tuple[Timed, ...]:
    """Run all steps `rounds` times, one after the other, after one round that only warms up.

    Args:
        scratch: each round gets a folder here. It stays: on ext4 without a journal, making files while others were
            just deleted takes ten times as long for minutes (the kernel passes over their inodes one by one).
        check: gets the folder of the warm-up round when all steps have run; raises if they did not do the same.

    Raises:
        whatever a step or `check` raises; nothing is measured further.
    """
    readings: list[list[Reading]] = [[] for _ in steps]
    for number in range(rounds + 1):
        progress.note(f"round {number} of {rounds}" if number else "warming up")
        folder = scratch / f"round-{number}"
        folder.mkdir()
        for step, own in zip(steps, readings, strict=True):
            own.append(_read(step, folder))
        if number == 0:
            check(folder)
    return tuple(Timed(step, own[0], tuple(own[1:])) for step, own in zip(steps, readings, strict=True))
