# SPDX-License-Identifier: Apache-2.0
"""Plays upstream's scheduler on a trace: what each step schedules, given what the steps before it sampled.

Neither torch nor vLLM here. The rules are those of `vllm/v1/core/sched/scheduler.py` (and `async_scheduler.py` where a
trace is overlapped), as runner V2 sees them: requests that run come first, in order; then waiting ones, unless somebody
was preempted; a request that comes back is a new one whose prefill holds its output; blocks are taken from one pool in
the order in which they were freed; with overlap a step is scheduled before the output of the one before it is known.
Beyond upstream, a trace says when to preempt whom: its priority policy may choose anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from step.mix import Draws, mix
from step.trace import ABORT, BUDGET, DRAFTS, PREEMPT, RESET, Arrival, Event, Trace

# What fills the place of a draft that the host has not seen.
UNSEEN = -1

Blocks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class New:
    """A request that the runner does not have: its first time, or back after preemption."""

    request: int
    prompt: tuple[int, ...]
    prefill: tuple[int, ...]
    computed: int
    blocks: Blocks


@dataclass(frozen=True)
class Cached:
    request: int
    computed: int
    output: int
    blocks: Blocks | None


@dataclass(frozen=True)
class Planned:
    """One step, as SchedulerOutput says it. `scheduled` and `drafts` are by request, in the scheduler's order.
    `masks`: for each request under a grammar the seeds of its rows of the bitmask."""

    step: int
    new: tuple[New, ...]
    cached: tuple[Cached, ...]
    scheduled: Mapping[int, int]
    drafts: Mapping[int, tuple[int, ...]]
    finished: frozenset[int]
    preempted: frozenset[int]
    structured: bool
    masks: Mapping[int, tuple[int, ...]]

    @property
    def tokens(self) -> int:
        return sum(self.scheduled.values())


class Pool:
    """Cache blocks with reference counts; block 0 is nobody's."""

    def __init__(self, blocks: int) -> None:
        self.free = deque(range(1, blocks))
        self.users: dict[int, int] = {}

    def take(self, count: int) -> list[int]:
        taken = [self.free.popleft() for _ in range(count)]
        self.users.update(dict.fromkeys(taken, 1))
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.users[block] += 1

    def give(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.free.append(block)


@dataclass
class Live:
    """A request that has arrived and has not ended."""

    arrival: Arrival
    prompt: tuple[int, ...]
    tokens: list[int]
    computed: int = 0
    placeholders: int = 0
    chunk: bool = True
    spec: list[int] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    known: bool = False
    # Outputs under way that nobody waits for any more.
    discard: int = 0

    @property
    def request(self) -> int:
        return self.arrival.request


class Schedule:
    """The scheduler's state. Call `plan`, run the step, call `ran` with what it sampled; again."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.shape = trace.shape
        self.step = 0
        self.pool = Pool(self.shape.blocks)
        self.waiting: deque[Live] = deque()
        self.running: list[Live] = []
        self.live: dict[int, Live] = {}
        self.finished: set[int] = set()
        self.preempted: set[int] = set()
        self.events: dict[int, list[Event]] = {}
        for event in trace.events:
            self.events.setdefault(event.step, []).append(event)
        self.arrivals: dict[int, list[Arrival]] = {}
        for arrival in trace.arrivals:
            self.arrivals.setdefault(arrival.step, []).append(arrival)
        self.prompts: dict[int, tuple[int, ...]] = {}
        for arrival in trace.arrivals:
            self.prompts[arrival.request] = self._prompt(arrival)
        # Steps whose output has not arrived, oldest first; a step and what came of it.
        self.pending: deque[tuple[Planned, Mapping[int, list[int]]]] = deque()
        # How often a request lost its blocks to another.
        self.made_room = 0

    def _prompt(self, arrival: Arrival) -> tuple[int, ...]:
        draws = Draws(self.trace.seed, 1, arrival.request)
        own = tuple(draws.below(self.shape.vocab) for _ in range(arrival.prompt))
        before = () if arrival.shares is None else self.prompts.get(arrival.shares, ())
        return (before[: arrival.shared] + own)[: self.shape.max_len - 2]

    def plan(self) -> Planned:
        """Schedule the next step."""
        events = self.events.get(self.step, [])
        for arrival in self.arrivals.get(self.step, ()):
            prompt = self.prompts[arrival.request]
            if prompt:
                live = self.live[arrival.request] = Live(arrival, prompt, list(prompt))
                self.waiting.append(live)
        for event in events:
            if event.kind == ABORT and event.request in self.live:
                self._end(self.live[event.request])
            elif event.kind == RESET:
                self._reset()
        budget = min([self.shape.budget, *(e.amount for e in events if e.kind == BUDGET)])
        for event in events:
            if event.kind == DRAFTS and (cut := self.live.get(event.request)) is not None:
                del cut.spec[event.amount :]
        return self._schedule(budget, [e.request for e in events if e.kind == PREEMPT])

    def _reset(self) -> None:
        # With drafts under way, upstream discards more outputs than there are; nobody relies on that.
        if self.shape.overlapped and self.shape.drafts:
            return
        while self.running:
            live = self.running.pop()
            self._preempt(live)
            live.discard, live.placeholders = live.placeholders, 0

    def _preempt(self, live: Live) -> None:
        self._free(live)
        live.computed = 0
        live.spec = []
        self.waiting.appendleft(live)
        self.preempted.add(live.request)

    def _free(self, live: Live) -> None:
        for group in live.blocks:
            self.pool.give(reversed(group))
        live.blocks = []

    def _end(self, live: Live) -> None:
        if live in self.running:
            self.running.remove(live)
        else:
            self.waiting.remove(live)
        self._free(live)
        self.finished.add(live.request)
        del self.live[live.request]

    def _allocate(self, live: Live, tokens: int) -> Blocks | None:
        """Blocks for the next tokens and the drafts behind them; None where the pool has not enough."""
        upto = min(live.computed + tokens + self.shape.lookahead, self.shape.max_len)
        live.blocks = live.blocks or [[] for _ in self.shape.groups]
        sizes = zip(self.shape.groups, live.blocks, strict=True)
        lacking = [max(0, -(-upto // size) - len(have)) for size, have in sizes]
        if sum(lacking) > len(self.pool.free):
            return None
        taken = tuple(tuple(self.pool.take(count)) for count in lacking)
        for have, more in zip(live.blocks, taken, strict=True):
            have.extend(more)
        return taken

    def _schedule(self, budget: int, victims: list[int]) -> Planned:
        scheduled: dict[int, int] = {}
        drafts: dict[int, tuple[int, ...]] = {}
        cached: list[Cached] = []
        new: list[New] = []
        plan_for: dict[int, Cached] = {}
        none_preempted = True
        for victim in victims:
            live = self.live.get(victim)
            if live is not None and live in self.running:
                self.running.remove(live)
                self._preempt(live)
                none_preempted = False
        prefill = False
        index = 0
        while index < len(self.running) and budget > 0:
            live = self.running[index]
            count = self._tokens_of(live, budget)
            if count <= 0:
                index += 1
                continue
            while (blocks := self._allocate(live, count)) is None:
                victim_live = self.running.pop()
                self._preempt(victim_live)
                self.made_room += 1
                none_preempted = False
                if victim_live is live:
                    break
            if blocks is None:
                break
            prefill |= live.chunk
            scheduled[live.request] = count
            budget -= count
            plan_for[live.request] = Cached(
                live.request, live.computed, len(live.tokens) - len(live.prompt) + live.placeholders,
                blocks if any(blocks) else None,
            )  # fmt: skip
            if live.spec:
                fit = count + live.computed - len(live.tokens) - live.placeholders
                if fit > 0:
                    drafts[live.request] = tuple(live.spec[:fit])
                live.spec = []
            index += 1
        cached = [plan_for[request] for request in scheduled]
        if none_preempted:
            decodes = bool(scheduled) and not prefill
            new = self._admit(budget, scheduled, drafts, decodes)
        return self._planned(new, cached, scheduled, drafts)

    def _tokens_of(self, live: Live, budget: int) -> int:
        if live.placeholders > 0 and live.computed + 2 - live.placeholders >= self._end_of(live):
            # Surely at its end once the step under way is known.
            return 0
        count = len(live.tokens) + len(live.spec) + live.placeholders - live.computed
        return min(count, budget, self.shape.max_len - live.computed - 1)

    def _end_of(self, live: Live) -> int:
        return len(live.prompt) + live.arrival.max_tokens

    def _admit(
        self, budget: int, scheduled: dict[int, int], drafts: dict[int, tuple[int, ...]], decodes: bool
    ) -> list[New]:
        new: list[New] = []
        while self.waiting and budget > 0 and len(self.running) < self.shape.max_reqs:
            live = self.waiting[0]
            shared = self._shared_blocks(live)
            live.computed = len(shared[0]) * self.shape.groups[0] if shared else 0
            count = len(live.tokens) - live.computed
            padded = False
            if self.shape.drafts and count == 1 and decodes:
                # A uniform batch stays one: as many tokens as the others have.
                count = 1 + self.shape.drafts
                if count > budget or live.computed + count > self.shape.max_len:
                    live.computed = 0
                    break
                padded = True
            count = min(count, budget)
            for group in shared:
                self.pool.share(group)
            live.blocks = [list(group) for group in shared]
            if self._allocate(live, count) is None:
                for group in live.blocks:
                    self.pool.give(reversed(group))
                live.blocks, live.computed = [], 0
                break
            self.waiting.popleft()
            self.running.append(live)
            live.known = True
            live.chunk = True
            new.append(
                New(live.request, live.prompt, tuple(live.tokens), live.computed, tuple(tuple(b) for b in live.blocks))
            )
            scheduled[live.request] = count
            if padded:
                drafts[live.request] = (UNSEEN,) * self.shape.drafts
            budget -= count
        return new

    def _shared_blocks(self, live: Live) -> list[list[int]]:
        """Whole blocks of another's prompt that are computed and in the cache; one group only."""
        other = self.live.get(live.arrival.shares) if live.arrival.shares is not None else None
        if other is None or len(self.shape.groups) > 1 or not other.blocks:
            return []
        size = self.shape.groups[0]
        done = other.computed if not other.placeholders else min(other.computed, len(other.prompt))
        same = min(live.arrival.shared, len(other.prompt), len(live.tokens) - 1, done)
        count = same // size
        return [other.blocks[0][:count]] if count else []

    def _planned(
        self, new: list[New], cached: list[Cached], scheduled: dict[int, int], drafts: dict[int, tuple[int, ...]]
    ) -> Planned:
        structured = False
        masks: dict[int, tuple[int, ...]] = {}
        for request, count in scheduled.items():
            live = self.live[request]
            live.computed += count
            live.chunk = live.computed < len(live.tokens) + live.placeholders
            if live.chunk:
                continue
            if live.arrival.grammar:
                structured = True
                rows = 1 + len(drafts.get(request, ()))
                masks[request] = tuple(mix(self.trace.seed, 2, request, live.computed, i) for i in range(rows))
            if self.shape.overlapped:
                live.placeholders += 1 + len(drafts.get(request, ()))
                live.spec = [UNSEEN] * self.shape.drafts
        planned = Planned(
            self.step, tuple(new), tuple(cached), dict(scheduled), dict(drafts), frozenset(self.finished),
            frozenset(self.preempted), structured, masks,
        )  # fmt: skip
        self.finished, self.preempted = set(), set()
        self.step += 1
        # With overlap, the output of the step before this one arrives now.
        while self.pending:
            self._take(*self.pending.popleft())
        return planned

    def ran(self, planned: Planned, sampled: Mapping[int, list[int]]) -> None:
        """What came of the step: new tokens by request, none for a chunk of a prompt."""
        if not planned.scheduled:
            return
        if self.shape.overlapped:
            self.pending.append((planned, sampled))
        else:
            self._take(planned, sampled)

    def _take(self, planned: Planned, sampled: Mapping[int, list[int]]) -> None:
        for request in planned.scheduled:
            live = self.live.get(request)
            if live is None:
                continue
            tokens = list(sampled.get(request, ()))
            if live.discard and tokens:
                live.discard -= 1
                continue
            guessed = len(planned.drafts.get(request, ()))
            if guessed and tokens:
                rejected = guessed - (len(tokens) - 1)
                if live.computed > 0:
                    live.computed -= rejected
                if live.placeholders > 0:
                    live.placeholders -= rejected
            if tokens:
                self._append(live, tokens)

    def _append(self, live: Live, tokens: list[int]) -> None:
        ended = False
        if self.shape.overlapped:
            live.placeholders -= len(tokens)
            assert live.placeholders >= 0, f"request {live.request} got more tokens than were under way"
        for token in tokens:
            live.tokens.append(token)
            full = len(live.tokens) >= min(self._end_of(live), self.shape.max_len)
            if full or token in live.arrival.stop:
                ended = True
                break
        if ended:
            self._end(live)
        elif self.shape.drafts and not self.shape.overlapped and not live.chunk and live in self.running:
            live.spec = [UNSEEN] * self.shape.drafts
