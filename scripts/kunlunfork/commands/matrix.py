"""kunlunfork matrix"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kunlunfork import errors
from kunlunfork.commands import matrixenv, matrixplan, matrixreplay, matrixreport
from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, describe, rows, table
from kunlunfork.errors import ForkError

if TYPE_CHECKING:
    from kunlunfork.matrix.cells import Cell
    from kunlunfork.matrix.run import Result
    from kunlunfork.matrix.selection import Shard

# Said here, since --help imports nothing of the matrix; a test compares them.
MODES = ("all-on", "all-off", "each", "pairs", "full")
BACKENDS = ("torch", "reference", "fused")
TIERS = ("ops", "step", "e2e", "upstream")


@click.group("matrix")
def command() -> None:
    """Measure that the fork computes what upstream computes.

    \b
    kunlunfork matrix run --vllm 0.25.1 --device cpu --tier ops    every site against upstream's kernels
    kunlunfork matrix report RESULTS                               what came of it
    kunlunfork matrix plan --shards 4                              a share for each machine
    kunlunfork matrix selftest                                     faults that these tests must catch
    kunlunfork matrix replay TRACE                                 a failing trace of steps again
    kunlunfork matrix env                                          the environment that they run in
    """


command.add_command(matrixenv.command)
command.add_command(matrixreport.command)
command.add_command(matrixplan.command)
command.add_command(matrixreplay.command)


Listed = Callable[[click.Context, click.Parameter, str], tuple[str, ...]]


def _listed(known: Sequence[str]) -> Listed:
    """Names of a list with commas between."""

    def convert(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.BadParameter(f"{', '.join(unknown)}; choose from {', '.join(known)}")
        return names

    return convert


def _shard(_: click.Context, __: click.Parameter, value: str | None) -> Shard | None:
    from kunlunfork.matrix import selection

    try:
        return None if value is None else selection.shard(value)
    except ValueError as e:
        raise click.BadParameter(str(e)) from e


def _cores() -> int:
    return len(os.sched_getaffinity(0))


vllm_option = click.option("--vllm", "version", metavar="VERSION", help="The pin [default: the newest].")
python_option = click.option("--python", type=FOLDER, help="Builds the engine environment [default: this one].")
processes_option = click.option(
    "-n", "--processes", type=click.IntRange(1), help="Processes at a time [default: a core each]."
)


@command.command("run")
@vllm_option
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option(
    "--tier",
    "tiers",
    callback=_listed(TIERS),
    default="ops",
    show_default=True,
    help="ops: every launcher; step: steps of an engine; e2e: whole engines; upstream: its own tests. Commas between.",
)
@click.option(
    "--switches",
    "mode",
    type=click.Choice(MODES),
    default="each",
    show_default=True,
    help="Which settings of the on/off switches.",
)
@click.option(
    "--backend",
    "backends",
    callback=_listed(BACKENDS),
    default=",".join(BACKENDS),
    show_default=True,
    help="With commas between.",
)
@click.option("-k", "expression", metavar="EXPR", help="Only what matches, as pytest's -k.")
@click.option("--cell", "cells", metavar="NAME", multiple=True, help="Only this cell, named as in the results.")
@click.option("--shard", metavar="I/N", callback=_shard, help="Only the share I of N, see matrix plan.")
@processes_option
@click.option("--random", type=click.IntRange(0), default=6, show_default=True, help="Random cases a site.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random cases and the traces.")
@click.option("--steps", type=click.IntRange(1), default=60, show_default=True, help="Of each scenario of tier step.")
@click.option(
    "--results",
    "--out",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for one JSON line a cell, written as they end [default: in the cache].",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: as shards on a Ray cluster.",
)
@click.option("--address", help="Of the Ray cluster, as ray.init takes it: auto, HOST:PORT [default: Ray's].")
@click.option("--resume", is_flag=True, help="Do not run again what has a result of this fork in the file.")
@python_option
@repo_option
@verb
def run_command(
    version: str | None, device: str, tiers: tuple[str, ...], mode: str, backends: tuple[str, ...],
    expression: str | None, cells: tuple[str, ...], shard: Shard | None, processes: int | None, random: int, seed: int,
    steps: int, out: Path | None, executor: str, address: str | None, resume: bool, python: Path | None,
    repo: Path | None, console: Console,
) -> int:  # fmt: skip
    """Run tiers and write one JSON line a cell, as the cells end.

    A run that is interrupted or killed keeps the cells that had ended; --resume goes on. The first run builds an
    engine environment in the cache (torch and vLLM, about 2 GB, minutes). Exit code 1 where a cell failed.
    """
    from kunlunfork import cache
    from kunlunfork.matrix.run import Options, run

    if resume and out is None:
        raise click.UsageError("--resume goes with --results FILE")
    if cells and len(tiers) != 1:
        raise click.UsageError("--cell goes with one --tier")
    on_ray = executor == "ray"
    if address is not None and not on_ray:
        raise click.UsageError("--address goes with --executor ray")
    if on_ray and shard is not None:
        raise click.UsageError("--executor ray makes its own shards: leave --shard out")
    fork = console.find_content(repo)
    options = Options(
        version or fork.newest(), device, tiers, mode, backends, expression,
        processes or (0 if on_ray else _cores()), random, seed,
        out, python, resume, shard, cells, ("kunlunfork", *sys.argv[1:]), steps,
    )  # fmt: skip
    if on_ray:
        from kunlunfork.matrix import rayrun

        result = rayrun.run(fork, cache.default(), options, address, console)
    else:
        result = run(fork, cache.default(), options, console)
    if result.summary.ok:
        console.result(_result(result), lambda: _show(result))
        return errors.OK
    bad = result.summary.bad
    error = ForkError(
        f"{len(bad)} of {sum(result.summary.counts.values())} cells did not pass",
        details=_lines(bad),
        fix=f"see: kunlunfork matrix report {shlex.quote(str(result.out))}; it has the command that runs a cell again",
    )

    def show() -> None:
        _show(result)
        print(describe(error))

    console.refused(_result(result), error, show)
    return errors.USER


def _lines(bad: Sequence[Cell]) -> list[str]:
    """One line for each thing that is wrong, which may be so in many cells."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in bad:
        first = [part.strip() for part in (cell.message or "").strip().split("\n")]
        # The head of a difference names the cell; what differs comes next.
        said = first[1] if first[0].startswith("harness.Mismatch") and len(first) > 1 else first[0]
        groups.setdefault((f"{cell.outcome} in {cell.launcher or 'a rule'}", said[:200]), []).append(cell)
    return [
        f"{where}: {cells[0].test.rpartition('::')[2]}"
        + (f" and {len(cells) - 1} more" if len(cells) > 1 else "")
        + f": {said}"
        for (where, said), cells in groups.items()
    ]


def _result(result: Result) -> dict[str, Any]:
    found = result.summary
    return {
        "out": str(result.out),
        "overlay_hash": result.overlay_hash,
        "versions": result.versions,
        "settings": list(result.settings),
        "counts": found.counts,
        "resumed": result.resumed,
        "launchers": [
            {
                "launcher": row.launcher,
                "sites": list(row.sites),
                "cases": row.cases,
                "cells": row.cells,
                "bad": row.bad,
                "ran": list(row.ran),
                "error": row.error,
                "seconds": round(row.seconds, 3),
            }
            for row in found.rows
        ],
        "bad": [{"test": c.test, "outcome": c.outcome, "message": c.message} for c in found.bad],
    }


def _show(result: Result) -> None:
    found = result.summary
    table(
        ("sites", "launcher", "cases", "cells", "bad", "max error", "seconds"),
        [
            (
                ",".join(map(str, row.sites)) or "-",
                row.launcher or "(rules of the fork)",
                str(row.cases),
                str(row.cells),
                str(row.bad or "-"),
                f"{row.error:.1e}" if row.error else "exact",
                f"{row.seconds:.1f}",
            )
            for row in found.rows
        ],
    )
    rows(
        [
            ("cells", ", ".join(f"{n} {outcome}" for outcome, n in found.counts.items() if n)),
            ("settings", f"{len(result.settings)}: {' '.join(result.settings)}"),
            ("overlay", result.overlay_hash[:12]),
            ("results", str(result.out)),
        ]
    )


@command.command("selftest")
@vllm_option
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option(
    "--tier",
    type=click.Choice(["ops", "step", "e2e"]),
    default="ops",
    show_default=True,
    help="Whose tests must catch them.",
)
@click.option("-k", "expression", metavar="TEXT", help="Only faults with this in their name, file, kind or bug.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time [default: a core each].")
@python_option
@repo_option
@verb
def selftest_command(
    version: str | None, device: str, tier: str, expression: str | None, jobs: int | None, python: Path | None,
    repo: Path | None, console: Console,
) -> int:  # fmt: skip
    """Put faults into copies of the overlay, one at a time, and see that the parity tests catch each.

    The faults are listed in tests/parity/faults; those of the tiers step and e2e, which may lie in upstream's files
    too, in tests/parity/step/faults.toml and tests/parity/e2e/faults.toml. Exit code 1 where one survives, or where
    the list no longer fits.
    """
    from kunlunfork import cache
    from kunlunfork.matrix import e2efaults, selftest, steps

    fork = console.find_content(repo)
    run = {"ops": selftest.run, "step": steps.selftest, "e2e": e2efaults.run}[tier]
    result = run(fork, cache.default(), version or fork.newest(), device, jobs or _cores(), expression, python, console)
    body = {
        "seconds": round(result.seconds, 1),
        "faults": [
            {
                "name": v.fault.name,
                "kind": v.fault.kind,
                "bug": v.fault.bug,
                "file": v.fault.file,
                "outcome": v.outcome,
                "by": v.by,
                "message": v.message,
                "seconds": v.seconds,
            }
            for v in result.verdicts
        ],
    }

    def show() -> None:
        table(
            ("fault", "kind", "bug", "file", "outcome", "by"),
            [
                (v.fault.name, v.fault.kind, v.fault.bug or "-", v.fault.file, v.outcome, (v.by or "-")[:90])
                for v in result.verdicts
            ],
        )
        caught = len(result.verdicts) - len(result.bad)
        print(f"{caught} of {len(result.verdicts)} faults caught in {result.seconds:.0f} s")

    if not result.bad:
        console.result(body, show)
        return errors.OK
    error = ForkError(
        f"{len(result.bad)} faults were not caught",
        details=[f"{v.outcome}: {v.fault.name} in {v.fault.file}: {v.message or v.fault.new}" for v in result.bad],
        fix=f"add the case that shows it to tests/parity/{'sites' if tier == 'ops' else tier}, or correct a fault "
        "that is broken",
    )

    def show_with_error() -> None:
        show()
        print(describe(error))

    console.refused(body, error, show_with_error)
    return errors.USER
