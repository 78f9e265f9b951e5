"""kunlunfork matrix env"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, rows


@click.command("env")
@click.option("--vllm", "version", metavar="VERSION", help="The pin [default: the newest].")
@click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True)
@click.option("--shell", is_flag=True, help='As export lines for a shell: eval "$(kunlunfork matrix env --shell)".')
@click.option("--python", type=FOLDER, help="Builds the engine environment [default: this one].")
@repo_option
@verb
def command(
    version: str | None, device: str, shell: bool, python: Path | None, repo: Path | None, console: Console
) -> None:
    """Build the engine environment, where it is not there yet, and say where it is.

    It holds vLLM and torch, without the fork and without Triton. tests/engine runs in what --shell exports.
    """
    from kunlunfork import cache
    from kunlunfork.matrix import definition, environment

    fork = console.find_content(repo)
    wanted = definition.load(fork, version or fork.versions()[-1], device)
    engine = environment.ensure(wanted, cache.default(), python, console)

    def show() -> None:
        if shell:
            print(f"export KUNLUNFORK_ENGINE_PYTHON={shlex.quote(str(engine.python))}")
            print(f"export KUNLUNFORK_ENGINE_TRITON={shlex.quote(str(engine.triton))}")
            return
        rows([("python", str(engine.python)), ("Triton", str(engine.triton)), *engine.versions.items()])

    console.result(
        {"python": str(engine.python), "triton": str(engine.triton), "versions": dict(engine.versions)}, show
    )
