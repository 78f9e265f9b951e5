"""`kunlunfork matrix run`: the environment, the tree, the cells, the file of results."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from kunlunfork import outfile, switches
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import definition, environment, ops, settings, trees
from kunlunfork.matrix.cells import Cell, Summary, summary
from kunlunfork.progress import Progress
from kunlunfork.store import Store


@dataclass(frozen=True)
class Options:
    """What the command line asks for; `mode` is one of `settings.MODES`."""

    version: str
    device: str
    tier: str
    mode: str
    backends: tuple[str, ...]
    expression: str | None
    processes: int
    random: int
    seed: int
    out: Path | None
    python: Path | None


@dataclass(frozen=True)
class Result:
    """`out`: the file of JSON lines; `settings`: their names; `overlay_hash`: what was tested."""

    out: Path
    settings: tuple[str, ...]
    overlay_hash: str
    versions: dict[str, str]
    summary: Summary


def run(content: Content, cache: Cache, options: Options, progress: Progress) -> Result:
    """Run a tier of the matrix.

    Raises:
        ForkError: no such pin or environment, the environment cannot be built, the fork does not fit, the tests
            cannot be collected, or the file of results cannot be written.
    """
    pin = content.pin(options.version)
    out = options.out or _default_out(cache, options, pin.version)
    outfile.check(out, parents=True)
    table = switches.read(content, pin.version, {})
    chosen = settings.settings(options.mode, settings.on_off(table))
    engine = environment.ensure(definition.load(content, pin.version, options.device), cache, options.python, progress)
    request = ops.Request(
        options.device, chosen, options.backends, options.processes, options.random, options.seed, options.expression
    )
    cells: list[Cell] = []
    # The tree must stay as it is while tests run in it.
    with environment.exclusive(engine.root / "trees.lock", "runs cells in the same tree", progress):
        tree = trees.fork_tree(content, engine, Store(cache.store), pin.version, progress)
        with _results(out) as file:

            def sink(cell: Cell) -> None:
                cells.append(cell)
                file.write(cell.line())

            try:
                ops.run(content, engine, tree, request, engine.root / "times.json", sink, progress)
            except KeyboardInterrupt:
                progress.note(f"{len(cells)} cells had ended; they are in {out}")
                raise
    return Result(out, tuple(s.name for s in chosen), tree.overlay_hash, dict(engine.versions), summary(cells))


def _results(out: Path) -> TextIO:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.open("w", encoding="utf-8")
    except OSError as e:
        raise ForkError(f"{out} cannot be written", found=e.strerror or str(e), fix="name another file: --out") from e


def _default_out(cache: Cache, options: Options, version: str) -> Path:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return cache.root / "results" / f"{version}-{options.device}-{options.tier}-{options.mode}-{now}.jsonl"
