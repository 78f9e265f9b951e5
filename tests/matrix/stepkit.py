"""For tests of the step tier's parts without torch: a runner that only keeps count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from step.mix import mix
from step.schedule import Planned, Schedule
from step.trace import Trace


@dataclass
class Row:
    """What a worker knows of a request."""

    prefill: tuple[int, ...]
    computed: int
    blocks: list[list[int]]
    tokens: list[int]


@dataclass
class Worker:
    """Takes steps as the runner does, and says where one could not be taken. It accepts some of the drafts."""

    trace: Trace
    rows: dict[int, Row] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def take(self, planned: Planned) -> Mapping[int, list[int]]:
        shape = self.trace.shape
        for request in planned.finished | planned.preempted:
            self.rows.pop(request, None)
        for new in planned.new:
            assert new.request not in self.rows, "a new request is known"
            assert new.prefill[: len(new.prompt)] == new.prompt
            assert 0 <= new.computed < len(new.prefill)
            self._note(new.request in planned.preempted, "back in the step of its preemption")
            self._note(len(new.prefill) > len(new.prompt), "back with output")
            self._note(new.computed > 0, "shares blocks")
            self.rows[new.request] = Row(new.prefill, new.computed, [list(g) for g in new.blocks], list(new.prefill))
        for cached in planned.cached:
            row = self.rows[cached.request]
            slack = cached.computed - row.computed
            assert slack == 0 or (shape.overlapped and 0 <= slack <= shape.drafts), "wrong count of computed tokens"
            for have, more in zip(row.blocks, cached.blocks or [() for _ in row.blocks], strict=True):
                have.extend(more)
        assert set(planned.scheduled) == {n.request for n in planned.new} | {c.request for c in planned.cached}
        assert len(self.rows) <= shape.max_reqs
        assert planned.tokens <= shape.budget
        self._note(not planned.scheduled and bool(planned.finished), "nothing but ends")
        self._note(bool(planned.masks), "masks")
        self._blocks_are_apart()
        return {request: self._run(planned, request, count) for request, count in planned.scheduled.items()}

    def _run(self, planned: Planned, request: int, count: int) -> list[int]:
        shape, row = self.trace.shape, self.rows[request]
        drafts = len(planned.drafts.get(request, ()))
        end = row.computed + count
        assert count > 0 and end <= shape.max_len
        for size, blocks in zip(shape.groups, row.blocks, strict=True):
            assert len(blocks) * size >= end, "a token without a slot"
        assert drafts <= shape.drafts
        if end < len(row.prefill):
            assert not drafts
            self._note(True, "chunk of a prompt")
            row.computed = end
            return []
        if not drafts or row.computed >= len(row.prefill):
            assert end - drafts == len(row.tokens), "not the tokens that follow"
        self._note(drafts not in (0, shape.drafts), "some drafts")
        self._note(drafts > 0 and any(n.request == request for n in planned.new), "padded to a uniform batch")
        accepted = mix(request, end) % (drafts + 1)
        sampled = [mix(request, end, i) % shape.vocab for i in range(accepted + 1)]
        row.computed = end - (drafts - accepted)
        row.tokens += sampled
        if request in planned.masks:
            assert len(planned.masks[request]) == 1 + drafts
        return sampled

    def _note(self, happened: bool, what: str) -> None:
        if happened:
            self.seen.add(what)

    def _blocks_are_apart(self) -> None:
        """No block is in two tables, but for shared beginnings of prompts; none is the null block."""
        owners: dict[int, tuple[int, int, int]] = {}
        for request, row in self.rows.items():
            for group, blocks in enumerate(row.blocks):
                for place, block in enumerate(blocks):
                    assert block > 0
                    _, other_group, other_place = owners.setdefault(block, (request, group, place))
                    assert (group, place) == (other_group, other_place), "a block in two places"
                    if (other := owners[block][0]) != request:
                        size = self.trace.shape.groups[0]
                        whole = slice(0, (place + 1) * size)
                        assert self.rows[other].tokens[whole] == row.tokens[whole]


def play(trace: Trace) -> tuple[list[Planned], Worker, Schedule]:
    """Schedule a whole trace and take every step."""
    schedule, worker = Schedule(trace), Worker(trace)
    steps = []
    for _ in range(trace.steps):
        planned = schedule.plan()
        steps.append(planned)
        schedule.ran(planned, worker.take(planned))
    return steps, worker, schedule
