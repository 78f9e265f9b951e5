"""`kunlunfork matrix run`: the environment, the tree, the cells, the file of results."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import outfile, switches
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.matrix import (
    definition,
    e2e,
    environment,
    ops,
    results,
    settings,
    times,
    trees,
    upstream,
    upstreamtests,
)
from kunlunfork.matrix.cells import ERROR, Cell, Run, Summary, summary
from kunlunfork.matrix.selection import Selection, Shard
from kunlunfork.matrix.tiers import TIERS
from kunlunfork.pins import Pin
from kunlunfork.progress import Progress
from kunlunfork.sources.base import PYPI, Settings, obtain
from kunlunfork.store import Base, Store

NAMES = (*TIERS, e2e.TIER, upstream.TIER)


@dataclass(frozen=True)
class Options:
    """What the command line asks for; `mode` is one of `settings.MODES`.

    out: the file of results; with `resume` its cells that have a result of the same fork are not run again.
    cells: names of cells to run alone. command: the command line, for the file. steps: of each scenario of the step
    tier.
    """

    version: str
    device: str
    tiers: tuple[str, ...]
    mode: str
    backends: tuple[str, ...]
    expression: str | None
    processes: int
    random: int
    seed: int
    out: Path | None
    python: Path | None
    resume: bool = False
    shard: Shard | None = None
    cells: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    steps: int = 60


@dataclass(frozen=True)
class Result:
    """`out`: the file of JSON lines; `settings`: their names; `overlay_hash`: what was tested.

    resumed: how many cells of the summary were in the file before.
    """

    out: Path
    settings: tuple[str, ...]
    overlay_hash: str
    versions: dict[str, str]
    summary: Summary
    resumed: int = 0


def run(content: Content, cache: Cache, options: Options, progress: Progress) -> Result:
    """Run tiers of the matrix.

    Raises:
        ForkError: no such pin or environment, the environment cannot be built, the fork does not fit, the tests
            cannot be collected, or the file of results cannot be read or written.
    """
    pin = content.pin(options.version)
    out = options.out or default_out(cache, options, pin.version)
    outfile.check(out, parents=True)
    before = results.load([out]) if options.resume and out.exists() else results.Loaded(())
    seconds = times.read(times.recorded(content)) if options.shard else {}
    table = switches.read(content, pin.version, {})
    chosen = settings.settings(options.mode, settings.on_off(table))
    engine = environment.ensure(definition.load(content, pin.version, options.device), cache, options.python, progress)
    request = ops.Request(
        options.device, chosen, options.backends, options.processes, options.random, options.seed, options.expression,
        options.steps, (out.parent / "traces").absolute(),
    )  # fmt: skip
    # The tree must stay as it is while tests run in it.
    with environment.exclusive(engine.root / "trees.lock", "runs cells in the same tree", progress):
        tree = trees.fork_tree(content, engine, Store(cache.store), pin.version, progress)
        shared = Run(
            pin=tree.version, device=options.device, tier="", seed=options.seed, series=tree.series_hash,
            overlay=tree.overlay_hash, versions=dict(engine.versions), machine=ops.machine(), random=options.random,
            switches=options.mode, date=_now().isoformat(timespec="seconds"), command=options.command,
            shard=str(options.shard) if options.shard else None, steps=options.steps,
        )  # fmt: skip
        old = kept(before.cells, tree.version, options, (tree.series_hash, tree.overlay_hash), errors=False)
        cells = list(old)
        with results.Writer(out, append=options.resume) as file:
            file.head(shared)

            def ended(cell: Cell) -> None:
                cells.append(cell)
                file.cell(cell)

            done = {tier: frozenset(c.test for c in old if c.run.tier == tier) for tier in options.tiers}
            selection = Selection(options.cells, options.shard, seconds, done)
            if old:
                progress.note(f"{len(old)} cells have a result in {out}; they are not run again")
            try:
                for tier in options.tiers:
                    if tier == upstream.TIER:
                        place = _upstream_place(content, cache, engine, tree.root, pin, options, progress)
                        upstream.run(
                            content, place, upstreamtests.load(content, pin.version, options.device).files, shared,
                            selection, options.processes, options.expression, ops.Log(file.tier, ended), progress,
                        )  # fmt: skip
                        continue
                    if tier == e2e.TIER:
                        e2e.run(content, engine, tree, shared, request, selection, ops.Log(file.tier, ended), progress)
                        continue
                    ops.run(
                        content, engine, tree, shared, TIERS[tier], request, selection, engine.root / "times.json",
                        ops.Log(file.tier, ended), progress,
                    )  # fmt: skip
            except KeyboardInterrupt:
                progress.note(f"{len(cells)} cells had ended; they are in {out}; to go on: --results and --resume")
                raise
    names = tuple(s.name for s in chosen)
    return Result(out, names, tree.overlay_hash, dict(engine.versions), summary(cells), len(old))


def _upstream_place(
    content: Content, cache: Cache, engine: environment.Engine, tree: Path, pin: Pin, options: Options,
    progress: Progress,
) -> upstream.Place:  # fmt: skip
    store = Store(cache.store)
    base = obtain(pin, PYPI, engine.root, store, Settings(cache, None, False, progress))
    assert isinstance(base, Base)
    tools = upstreamtests.tools(engine, upstreamtests.load(content, pin.version, options.device), progress)
    return upstream.Place(engine, upstreamtests.folder(engine, store, base), tree, tools)


def kept(
    cells: Sequence[Cell], version: str, options: Options, hashes: tuple[str, str], *, errors: bool = True
) -> list[Cell]:
    """The last result of each cell of these tiers, of the same fork (`hashes`: series, overlay) and inputs.

    errors: with those that ended in an error, which may have come from a worker that was lost; they run again.
    """
    tested = (version, options.device, *hashes, options.seed, options.random)
    last = {(c.run.tier, c.test): c for c in cells if c.run.tested == tested and c.run.tier in options.tiers}
    return [cell for cell in last.values() if errors or cell.outcome != ERROR]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def default_out(cache: Cache, options: Options, version: str) -> Path:
    name = f"{version}-{options.device}-{'+'.join(options.tiers)}-{options.mode}-{_now():%Y%m%dT%H%M%SZ}.jsonl"
    return cache.root / "results" / name
