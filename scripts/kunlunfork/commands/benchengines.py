"""kunlunfork bench e2e, kunlunfork bench host"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kunlunfork.commands._options import FOLDER, repo_option, verb
from kunlunfork.console import Console, table
from kunlunfork.errors import ForkError

_OPTIONS = (
    click.option("--model", type=FOLDER, required=True, help="The folder of a model."),
    click.option("--draft", type=FOLDER, help="Its draft model for dspark: every engine with and without [none]."),
    click.option("--tokens", type=click.IntRange(1, 64), default=7, show_default=True, help="Drafts a step."),
    click.option("--engines", metavar="E,E", default="upstream-v1,upstream-v2,fork-auto", show_default=True,
                 help="upstream-v1, upstream-v2, fork-auto, fork-torch, fork-fused."),
    click.option("--loads", metavar="N,N", default="8,32,128", show_default=True, help="Numbers of requests."),
    click.option("--python", type=FOLDER, help="An interpreter with an unmodified vLLM [that of `matrix env`]."),
    click.option("--tree", type=FOLDER, help="With --python: a fork tree of the same release, put before its vLLM."),
    click.option("--vllm", "version", metavar="VERSION", help="Without --python: the pin [default: the newest]."),
    click.option("--eager", is_flag=True, help="Without graphs, as it always is in the environment of `matrix env`."),
    click.option("--kv-cache-mib", type=click.IntRange(16), default=1024, show_default=True, help="Of each engine."),
    click.option("--llm", "extra", metavar="JSON", default="{}", help="More arguments of vLLM's LLM."),
    click.option("--out", type=FOLDER, help="Write the result as JSON into this file, too."),
    repo_option,
)  # fmt: skip


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("e2e")
@_options
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="How often each is timed.")
@click.option("--input", "length", type=click.IntRange(1), default=128, show_default=True, help="Tokens of a prompt.")
@click.option("--output", type=click.IntRange(2), default=256, show_default=True, help="Tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0: greedy.")
@verb
def e2e(rounds: int, length: int, output: int, console: Console, **options: Any) -> None:
    """Throughput, time to the first token and time a token of engines that take turns at the same requests.

    All engines live side by side; random prompts, all requests at once, after a round that warms up. Numbers
    of one sitting compare with each other, not with those of another. The last column: tokens that are wrong, where the
    model is one whose answers are known; sampled (each request with its seed), whether they are upstream V2's.
    """
    from kunlunfork.bench import e2e as bench
    from kunlunfork.bench import enginerun

    def show(result: dict[str, Any]) -> None:
        table(bench.HEADER, bench.table(result["rows"]))

    _measured(console, options, (rounds, length, output), enginerun.measure_e2e, show)


@click.command("host")
@_options
@verb
def host(console: Console, **options: Any) -> None:
    """What the host does in a decode step: microseconds by phase, launches, copies, waits, operators of torch."""
    from kunlunfork.bench import enginerun
    from kunlunfork.bench import host as bench

    def show(result: dict[str, Any]) -> None:
        for header, lines in bench.tables(result["rows"]):
            table(header, lines)
            print()

    _measured(console, options, (1, 1, 2), enginerun.measure_host, show)


def _measured(
    console: Console, options: dict[str, Any], sizes: tuple[int, int, int], measure: Callable[..., dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    from kunlunfork import outfile
    from kunlunfork.bench import enginerun, run

    if options["out"] is not None:
        outfile.check(options["out"])
    if (options["python"] is None) != (options["tree"] is None):
        raise ForkError("--python and --tree go together", expected="both, or neither for what `matrix env` builds")
    ready_made = options["python"] is not None
    setup = enginerun.Setup(
        enginerun.named(_listed(options["engines"])), _numbers(options["loads"]), *sizes, options["tokens"],
        options["eager"] or not ready_made, options["kv_cache_mib"], _arguments(options["extra"]),
        options.get("temperature", 0.0),
    )  # fmt: skip
    enginerun.vocabulary(options["model"])
    with (
        _places(console, options) as (places, environ),
        enginerun.running(setup, places, environ, console.note) as started,
    ):
        result = measure(setup, started, console.note)
    if options["out"] is not None:
        run.write(options["out"], result)
    for row in result["rows"]:
        if "error" in row:
            console.warn(f"{row['variant']}, {row['requests']} requests: {str(row['error'])[-300:]}")

    def told() -> None:
        print(f"{result['device']}, vLLM {result['vllm']}, torch {result['torch']}\n")
        show(result)

    console.result(result, told)


@contextmanager
def _places(console: Console, options: dict[str, Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Where the engines' packages are, and variables for them; a tree of ours stays as it is meanwhile."""
    from kunlunfork import cache
    from kunlunfork.bench.engines import Places
    from kunlunfork.matrix import definition, environment, trees
    from kunlunfork.store import Store

    model, draft = options["model"].absolute(), options["draft"] and options["draft"].absolute()
    if options["python"] is not None:
        yield Places(options["python"].absolute(), (), (options["tree"].absolute(),), model, draft), {}
        return
    content, folders = console.find_content(options["repo"]), cache.default()
    version = options["version"] or content.versions()[-1]
    engine = environment.ensure(definition.load(content, version, "cpu"), folders, None, console)
    with environment.exclusive(engine.root / "trees.lock", "runs cells in the same tree", console):
        trees.fork_tree(content, engine, Store(folders.store), version, console)
        places = Places(engine.python, (), (engine.root / "trees" / "fork",), model, draft)
        # Engines that bind themselves to the same cores would wait for each other.
        yield places, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _listed(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def _numbers(value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in _listed(value))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ForkError(f"--loads {value} are no numbers of requests", expected="such as 8,32,128")
    return found


def _arguments(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ForkError("--llm is no JSON object", found=value[:80], expected='such as {"dtype": "float32"}')
    return found
