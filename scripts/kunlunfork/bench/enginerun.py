"""`bench e2e` and `bench host`: which engines are started on what, and what is told of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kunlunfork.bench import e2e, engines, host, machine
from kunlunfork.bench.engines import Engine, Places, Sitting, Variant
from kunlunfork.errors import ForkError

# As the command line names them.
NAMES = {
    "upstream-v1": engines.UPSTREAM_V1,
    "upstream-v2": engines.UPSTREAM_V2,
    **{f"fork-{kernels}": name for kernels, name in engines.FORK.items()},
}
HOST_INPUT, HOST_STEPS, HOST_PROFILED, HOST_TURNS = 32, 15, 10, 3
# Steps before the timed ones, and a margin: see probes/engine.py.
_HOST_MORE = 5 + 8


@dataclass(frozen=True)
class Setup:
    """What is measured. tokens: drafts a step. eager: without graphs. extra: more arguments of LLM, which win.
    temperature: of `bench e2e`.
    """

    names: tuple[str, ...]
    loads: tuple[int, ...]
    rounds: int
    input: int
    output: int
    tokens: int
    eager: bool
    kv_cache_mib: int
    extra: Mapping[str, Any]
    temperature: float = 0.0

    def longest(self) -> int:
        """Tokens of the longest request of both benchmarks, with drafts behind its end."""
        steps = HOST_STEPS + HOST_PROFILED + _HOST_MORE
        counted = max(self.input + self.output, HOST_INPUT + steps * (1 + self.tokens) + 16)
        return counted + self.tokens + 1

    def llm(self, drafts: bool) -> dict[str, Any]:
        """Arguments of LLM; all engines live at once, so none takes what memory is free."""
        requests = max(self.loads)
        found: dict[str, Any] = {
            "max_model_len": self.longest(), "max_num_seqs": requests,
            "max_num_batched_tokens": max(8192, self.longest()), "kv_cache_memory_bytes": self.kv_cache_mib << 20,
            "gpu_memory_utilization": 0.04, "enable_prefix_caching": False, "seed": 0,
        }  # fmt: skip
        if self.eager:
            found["enforce_eager"] = True
        else:
            sizes = engines.graph_sizes(requests, self.tokens if drafts else 0)
            found["compilation_config"] = {"cudagraph_capture_sizes": sizes}
        return {**found, **self.extra}


def named(words: Sequence[str]) -> tuple[str, ...]:
    """The variants of these words of the command line. Raises ForkError for another word."""
    unknown = [word for word in words if word not in NAMES]
    if unknown:
        raise ForkError(f"no such engine: {', '.join(unknown)}", expected=", ".join(NAMES))
    return tuple(NAMES[word] for word in words)


def vocabulary(model: Path) -> int:
    """Highest token id + 1, of a model's config.json. Raises ForkError where it does not say."""
    file = model / "config.json"
    try:
        size = json.loads(file.read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ForkError(
            f"{model} is no model that can be measured",
            found=f"{file}: {e.strerror if isinstance(e, OSError) else type(e).__name__}",
            expected="a folder with the config.json of a text model, with its vocab_size",
        ) from e
    if not isinstance(size, int) or size < 1:
        raise ForkError(f"{file} says nothing useful of the vocabulary", found=repr(size), expected="a number")
    return size


def wanted(setup: Setup, places: Places) -> list[Variant]:
    """One engine a name without drafts and, where a draft model is given, one with."""
    return engines.variants(setup.names, [False, True] if places.draft is not None else [False], places)


@contextmanager
def running(
    setup: Setup, places: Places, environ: Mapping[str, str], note: Callable[[str], object]
) -> Iterator[list[Engine]]:
    """All engines, side by side, until the end. Raises ForkError where none starts."""
    size = vocabulary(places.model)
    for file in (places.python, *([] if places.draft is None else [places.draft / "config.json"])):
        if not file.exists():
            raise ForkError(f"{file} does not exist", expected="an interpreter with vLLM, and the models' folders")
    started: list[Engine] = []
    with tempfile.TemporaryDirectory(prefix="kunlunfork-bench-") as folder:
        sitting = Sitting(places, Path(folder), setup.llm, setup.tokens, size, environ)
        try:
            started = engines.start_all(sitting, wanted(setup, places), note)
            if all(engine.error is not None for engine in started):
                told = [f"{e.variant.title}: {(e.error or '')[-600:]}" for e in started]
                raise ForkError("no engine starts", details=told, expected="at least one that does")
            yield started
        finally:
            for engine in started:
                engine.end()


def measure_e2e(setup: Setup, started: Sequence[Engine], note: Callable[[str], object]) -> dict[str, Any]:
    rows = e2e.measure(started, setup.loads, setup.rounds, setup.input, setup.output, note, setup.temperature)
    return {**about(setup, started), "rows": rows}


def measure_host(setup: Setup, started: Sequence[Engine], note: Callable[[str], object]) -> dict[str, Any]:
    rows = host.measure(started, setup.loads, HOST_TURNS, HOST_STEPS, HOST_PROFILED, note)
    return {**about(setup, started), "rows": rows}


def about(setup: Setup, started: Sequence[Engine]) -> dict[str, Any]:
    """What the numbers depend on: the machine, the device, what was installed, and the setting."""
    said = next(engine.about for engine in started if engine.error is None)
    settings = {k: v for k, v in asdict(setup).items() if k != "names"}
    return {
        "machine": asdict(machine.look(Path.cwd())),
        "device": said.get("device"),
        "torch": said.get("torch"),
        "vllm": said.get("vllm"),
        "settings": {**settings, "loads": list(setup.loads), "extra": dict(setup.extra)},
    }
