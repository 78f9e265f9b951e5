"""kunlunfork matrix replay"""

from __future__ import annotations

from pathlib import Path

import click

from kunlunfork import errors
from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, describe, rows
from kunlunfork.errors import ForkError


@click.command("replay")
@click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--vllm", "version", metavar="VERSION", help="The pin [default: the newest].")
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option(
    "--shrink", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="Make it smaller, for so long at most."
)
@click.option("--python", type=FOLDER, help="Builds the engine environment [default: this one].")
@repo_option
@verb
def command(
    trace: Path, version: str | None, device: str, shrink: float, python: Path | None, repo: Path | None,
    console: Console,
) -> int:  # fmt: skip
    """Run a trace of the step tier again: upstream's runner and the fork's, step by step.

    The file says with which switches. Exit code 1 where the fork differs.
    """
    from kunlunfork import cache
    from kunlunfork.matrix import steps

    fork = console.find_content(repo)
    found = steps.replay(
        fork, cache.default(), version or fork.newest(), device, trace, shrink, python, console
    )  # fmt: skip
    body = {
        "difference": found.difference,
        "variables": found.variables,
        "steps": found.steps,
        "requests": found.requests,
        "kept": None if found.kept is None else str(found.kept),
    }

    def show() -> None:
        rows(
            [
                ("trace", f"{found.requests} requests, {found.steps} steps"),
                ("variables", " ".join(f"{k}={v}" for k, v in found.variables.items())),
                ("result", "the same in every step" if found.difference is None else "the fork differs"),
                *([("smaller", str(found.kept))] if found.kept is not None else []),
            ]
        )

    if found.difference is None:
        console.result(body, show)
        return errors.OK
    first, *details = found.difference.splitlines()
    error = ForkError(f"the fork differs from upstream in {first}", details=[line.strip() for line in details])

    def show_with_error() -> None:
        show()
        print(describe(error))

    console.refused(body, error, show_with_error)
    return errors.USER
