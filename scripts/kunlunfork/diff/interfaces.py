"""One decode step in stages, and runner and speculator side by side: what the fork replaces in each, and what a newer
mainline does there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kunlunfork import paths
from kunlunfork.diff import signatures, text
from kunlunfork.diff.facts import Reader
from kunlunfork.diff.graph import Graph, Symbol
from kunlunfork.diff.sides import Sides
from kunlunfork.diff.standins import REPLACED, SHADOWED, StandIn, find
from kunlunfork.symbols.facts import Function

RUNNER = "vllm/v1/worker/gpu/model_runner.py"
RUNNER_CLASS = "GPUModelRunner"
# What the engine calls in one step.
ROOTS = ("execute_model", "sample_tokens")
_SPECULATOR = "vllm/v1/worker/gpu/spec_decode/"

# The stages in the order of a step, and the calls in `ROOTS` that each consists of. A release that has none of the
# names of a stage shows them under `other`, so that a new one is seen.
STAGES: tuple[tuple[str, str], ...] = (
    ("slots and idx_mapping", r"self\.(update_pp_decode_requests|finish_requests|free_states|add_requests"
                              r"|update_requests|gather_batch_req_state)"),
    ("staged writes", r".*\.apply_staged_writes"),
    ("input preparation", r"self\.prepare_inputs|InputBatch\.make_dummy|get_uniform_token_count"
                          r"|self\.model_state\.(preprocess_state|prepare_inputs|prepare_inputs_embeds"
                          r"|get_mm_embeddings|dummy_inputs_embeds)"),
    ("attention metadata", r"self\.(prepare_attn|prepare_dummy_attn)|self\.model_state\.prepare_attn"
                           r"|build_slot_mappings_by_layer|prepare_dcp_local_seq_lens"),
    ("forward", r"self\.model|.*\.(run_fullgraph|run_pw_graph|pre_forward|prepare_forward|finish_forward)"
                r"|set_forward_context|dispatch_cg_and_sync_dp|self\.ubatch_runner\..*|BatchDescriptor"),
    ("sampling", r"self\.sample|.*\.compute_prompt_(token_id_)?logprobs|self\.pcp_manager\.restore_for_sampling"),
    ("output copy", r"AsyncOutput"),
    ("post-update", r"self\.postprocess_(sampled|num_computed_tokens)|self\.model_state\.postprocess_state"),
    ("draft", r"self\.(speculator|adaptive_verification|draft_tokens_handler)\..*|self\.model\.get_mtp.*"
              r"|get_drafter_hidden_states|self\.model_state\.gather_mm_embeddings"),
)  # fmt: skip
OTHER = "other"
# What the fork replaces and no call leads to by name: an object whose class is not told, or no part of a decode step.
ELSEWHERE = "not reached by name"
# Beside the runner's folder: what leads from it to a site elsewhere.
_BETWEEN = ("vllm/v1/sample/ops/topk_topp_sampler.py",)


@dataclass(frozen=True)
class Entry:
    """A call in a step: who makes it, in which line, of what."""

    caller: str
    line: int
    to: str


@dataclass(frozen=True)
class Stage:
    """`calls` in the pin's release, `newer` in the newer one (None: none was asked about). `replaced` are the launchers
    and methods that the fork stands in for, reached from here and from no stage before; `by` what stands in."""

    name: str
    calls: tuple[Entry, ...]
    newer: tuple[Entry, ...] | None
    replaced: tuple[tuple[Symbol, tuple[StandIn, ...]], ...]

    @property
    def arrived(self) -> tuple[str, ...]:
        """What the newer release calls in this stage and the pin's does not."""
        return _other(self.newer or (), self.calls)

    @property
    def left(self) -> tuple[str, ...]:
        """What the newer release calls no more."""
        return _other(self.calls, self.newer) if self.newer is not None else ()

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.name,
            "calls": [_entry(each) for each in self.calls],
            "newer": None if self.newer is None else [_entry(each) for each in self.newer],
            "fork": [
                {"path": path, "name": name, "by": [each.as_json() for each in by]}
                for (path, name), by in self.replaced
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A method (or function) of a step. `calls` and `callers` are others of the same step, in order. `newer` says how
    its signature changed, None where it is gone; () for no change, or where no newer release was asked about."""

    path: str
    name: str
    line: int
    signature: str
    calls: tuple[str, ...]
    callers: tuple[str, ...]
    by: tuple[StandIn, ...]
    newer: tuple[str, ...] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path, "name": self.name, "line": self.line, "signature": self.signature,
            "calls": list(self.calls), "callers": list(self.callers), "by": [each.as_json() for each in self.by],
            "gone": self.newer is None, "signature_changes": list(self.newer or ()),
        }  # fmt: skip


@dataclass(frozen=True)
class Interfaces:
    """`runner`: methods of the runner; `verify`: what checks drafts; `propose`: what makes them."""

    stages: tuple[Stage, ...]
    runner: tuple[Method, ...]
    verify: tuple[Method, ...]
    propose: tuple[Method, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "stages": [stage.as_json() for stage in self.stages],
            **{name: [m.as_json() for m in getattr(self, name)] for name in ("runner", "verify", "propose")},
        }


def _other(some: Iterable[Entry], others: Iterable[Entry]) -> tuple[str, ...]:
    known = {each.to for each in others}
    return tuple(dict.fromkeys(each.to for each in some if each.to not in known))


def _entry(entry: Entry) -> dict[str, Any]:
    return {"caller": entry.caller, "line": entry.line, "to": entry.to}


def make(sides: Sides, reader: Reader) -> Interfaces:
    """Read the step of the pin's release and of the newer one (raises `ForkError`: the overlay is not Python)."""
    renamed = {}
    if sides.against is not None:
        effect = sides.store.effect(sides.base, sides.against[1])
        moved = text.compare(sides.store, {p: e for p, e in effect.items() if p.startswith(_SPECULATOR.encode())}, 0)
        renamed = {paths.to_text(old): paths.to_text(new) for old, new in text.renamed(moved).items()}
    standins: dict[Symbol, list[StandIn]] = {}
    for stand in find(sides.fork):
        if stand.kind in (REPLACED, SHADOWED):
            standins.setdefault((stand.path, stand.name), []).append(stand)
    also = {*_BETWEEN, *(path for path, _ in standins)}
    graph = Graph(sides.store, reader, sides.base, also)
    newer = None if sides.against is None else Graph(sides.store, reader, sides.against[1], also)
    stages = _stages(graph, newer, standins)
    reached = graph.walk(_roots())
    before: dict[Symbol, list[Symbol]] = {}
    after: dict[Symbol, list[Symbol]] = {}
    for symbol in reached:
        for _, found in graph.calls(symbol):
            for each in found:
                after.setdefault(symbol, []).append(each)
                before.setdefault(each, []).append(symbol)
    methods = []
    for symbol in sorted(reached, key=lambda s: (s[0], _line(graph, s))):
        function = graph.function(symbol)
        if function is None or function.is_jit:
            continue
        calls, callers = (
            tuple(dict.fromkeys(s[1] for s in table.get(symbol, ()) if not _is_jit(graph, s)))
            for table in (after, before)
        )
        by = tuple(standins.get(symbol, ()))
        methods.append(Method(
            *symbol, function.line, function.signature, calls, callers, by, _changed(function, newer, symbol, renamed)
        ))  # fmt: skip
    runner = tuple(m for m in methods if m.path == RUNNER)
    spec = [m for m in methods if m.path.startswith(_SPECULATOR)]
    verify = tuple(m for m in spec if "rejection_sampler" in m.path)
    return Interfaces(stages, runner, verify, tuple(m for m in spec if m not in verify))


def _roots() -> list[Symbol]:
    return [(RUNNER, f"{RUNNER_CLASS}.{name}") for name in ROOTS]


def _line(graph: Graph, symbol: Symbol) -> int:
    function = graph.function(symbol)
    return 0 if function is None else function.line


def _is_jit(graph: Graph, symbol: Symbol) -> bool:
    function = graph.function(symbol)
    return function is not None and function.is_jit


def _changed(old: Function, newer: Graph | None, symbol: Symbol, renamed: Mapping[str, str]) -> tuple[str, ...] | None:
    if newer is None:
        return ()
    found = newer.function((renamed.get(symbol[0], symbol[0]), symbol[1]))
    return None if found is None else signatures.changes(old, found)


def _entries(graph: Graph) -> list[tuple[str, Entry, list[Symbol]]]:
    """The calls of a step with the stage of each, in order."""
    found = []
    for root in _roots():
        for call, reached in graph.calls(root):
            name = next((name for name, pattern in STAGES if re.fullmatch(pattern, call.to)), OTHER)
            if name != OTHER or (call.to.startswith("self.") and reached):
                found.append((name, Entry(root[1].rpartition(".")[2], call.line, call.to), reached))
    return found


def _stages(graph: Graph, newer: Graph | None, standins: dict[Symbol, list[StandIn]]) -> tuple[Stage, ...]:
    entries = _entries(graph)
    later = _entries(newer) if newer is not None else []
    starts = {s for _, _, reached in entries for s in reached}
    # The staged writes are also made inside of what adds and updates requests.
    writes = [
        (path, name) for path, facts in graph.files.items() for name in facts.functions
        if name.rpartition(".")[2] == "apply_staged_writes"
    ]  # fmt: skip
    stages = []
    taken: set[Symbol] = set()
    for name in (*(name for name, _ in STAGES), OTHER):
        mine = [(entry, reached) for stage, entry, reached in entries if stage == name]
        begin = [symbol for _, reached in mine for symbol in reached]
        begin += writes if name == STAGES[1][0] else []
        stop = frozenset((starts | set(writes)) - set(begin))
        found = [s for s in graph.walk(begin, stop) if s in standins]
        replaced = tuple((s, tuple(standins[s])) for s in _once(found, taken, name))
        calls = tuple(entry for entry, _ in mine)
        after = tuple(entry for stage, entry, _ in later if stage == name) if newer is not None else None
        if calls or after or replaced:
            stages.append(Stage(name, calls, after, replaced))
    left = sorted(s for s, by in standins.items() if s not in taken and any(each.kind == REPLACED for each in by))
    if left:
        stages.append(Stage(ELSEWHERE, (), None, tuple((s, tuple(standins[s])) for s in left)))
    return tuple(stages)


def _once(found: Iterable[Symbol], taken: set[Symbol], stage: str) -> Iterable[Symbol]:
    """What a stage before does not have; drafting does much of it again, and shows it."""
    for symbol in sorted(found):
        if stage == "draft" or symbol not in taken:
            taken.add(symbol)
            yield symbol
