"""Engines of several variants in processes of their own, which live side by side and are asked in turns.

Only the standard library is needed, so that this runs where kunlunfork is not installed (tests/device).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().parent / "probes" / "engine.py"
# An engine with graphs starts in a minute; a round of 128 requests without them takes as long.
PATIENCE = 600.0
# What would send a child to other packages than its own, or change what it runs.
_LEAKS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")

UPSTREAM_V1, UPSTREAM_V2 = "upstream V1", "upstream V2"
FORK = {"auto": "fork auto", "torch": "fork torch", "fused": "fork fused"}
NAMES = (UPSTREAM_V1, UPSTREAM_V2, *FORK.values())


@dataclass(frozen=True)
class Places:
    """Where things are. `upstream`, `fork`: folders put before the packages of `python`, for each kind of variant."""

    python: Path
    upstream: tuple[Path, ...]
    fork: tuple[Path, ...]
    model: Path
    draft: Path | None = None
    permutation: Path | None = None


@dataclass(frozen=True)
class Variant:
    """One engine. `drafts`: with speculative decoding."""

    name: str
    drafts: bool
    path: tuple[Path, ...]
    env: Mapping[str, str]
    hide_views: bool = False

    @property
    def title(self) -> str:
        return f"{self.name}, {'dspark' if self.drafts else 'no drafts'}"


def variants(names: Iterable[str], drafts: Sequence[bool], places: Places, hide_views: bool = False) -> list[Variant]:
    """The variants of these names, all without drafts first; runner V1 has no dspark.

    hide_views: the fork's engines see no memory of the host, as on Kunlun.
    """
    found = []
    for with_drafts in drafts:
        for name in names:
            if name == UPSTREAM_V1 and with_drafts:
                continue
            env = {"VLLM_USE_V2_MODEL_RUNNER": "0" if name == UPSTREAM_V1 else "1"}
            ours = name in FORK.values()
            if ours:
                env["KUNLUN_KERNELS"] = next(k for k, v in FORK.items() if v == name)
            path = places.fork if ours else places.upstream
            found.append(Variant(name, with_drafts, path, env, hide_views and ours))
    return found


@dataclass
class Engine:
    """A running engine, or one that failed: `error` says how. `about`: what it said of itself."""

    variant: Variant
    log: Path
    child: subprocess.Popen[str] | None
    about: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def ask(self, question: Mapping[str, Any], patience: float = PATIENCE) -> dict[str, Any] | None:
        """The answer; None where there is none, and from then on `error` is set."""
        if self.error is not None:
            return None
        child = self.child
        assert child is not None and child.stdin is not None and child.stdout is not None
        watch = threading.Timer(patience, child.kill)
        watch.start()
        try:
            child.stdin.write(json.dumps(question) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        finally:
            watch.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = _ended(child)
        tail = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
        self.error = f"exit code {code}: " + " | ".join(part.strip() for part in tail)
        return None

    def end(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()


def _ended(child: subprocess.Popen[str]) -> int:
    """The exit code of a process that closed its output, or is killed."""
    try:
        return child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def start(variant: Variant, places: Places, spec: Mapping[str, Any], log: Path, environ: Mapping[str, str]) -> Engine:
    """Start the process; `ask({"do": "about"})` waits until it is ready. spec: see probes/engine.py."""
    env = {k: v for k, v in os.environ.items() if k not in _LEAKS and not k.startswith("KUNLUN_")}
    env.update(environ)
    env.update(variant.env)
    env.update(PYTHONPATH=os.pathsep.join(str(p) for p in variant.path), HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    command = [str(places.python), str(PROBE), json.dumps({**spec, "hide_views": variant.hide_views})]
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, cwd=log.parent
        )
    return Engine(variant, log, child)


def specification(places: Places, drafts: bool, llm: Mapping[str, Any], tokens: int, vocabulary: int) -> dict[str, Any]:
    """What an engine is started with. tokens: drafts a step."""
    arguments = {**llm, "model": str(places.model), "skip_tokenizer_init": True}
    if drafts:
        arguments["speculative_config"] = {
            "method": "dspark", "model": str(places.draft), "num_speculative_tokens": tokens,
        }  # fmt: skip
    permutation = None if places.permutation is None else str(places.permutation)
    return {"llm": arguments, "vocabulary": vocabulary, "permutation": permutation}


def graph_sizes(requests: int, tokens: int) -> list[int]:
    """Sizes that cover uniform decode steps of every number of requests to `requests`: upstream's end at 512 tokens."""
    most = requests * (tokens + 1)
    # Few: each is a capture.
    sizes = [1, 2, 4, 8, 16, 24, *range(32, 257, 32), *range(384, most, 128), most]
    return sorted({size for size in sizes if size <= most})


@dataclass(frozen=True)
class Sitting:
    """How engines are started. `together`: how many at a time; llm(drafts): arguments of LLM.

    cache: a folder for what vLLM compiles, one below it for each engine: they would write over each other's.
    """

    places: Places
    work: Path
    llm: Callable[[bool], Mapping[str, Any]]
    tokens: int
    vocabulary: int
    environ: Mapping[str, str] = field(default_factory=dict)
    together: int = 1
    cache: Path | None = None


def start_all(sitting: Sitting, wanted: Sequence[Variant], note: Callable[[str], object]) -> list[Engine]:
    """Start all engines and wait until each is ready or has failed."""
    engines: list[Engine] = []
    for first in range(0, len(wanted), sitting.together):
        group: list[Engine] = []
        for variant in wanted[first : first + sitting.together]:
            spec = specification(
                sitting.places, variant.drafts, sitting.llm(variant.drafts), sitting.tokens, sitting.vocabulary
            )
            number = len(engines) + len(group)
            environ = dict(sitting.environ)
            if sitting.cache is not None:
                environ["VLLM_CACHE_ROOT"] = str(sitting.cache / f"{number}-{variant.title.replace(' ', '-')}")
            group.append(start(variant, sitting.places, spec, sitting.work / f"{number}.log", environ))
        for engine in group:
            engine.about = engine.ask({"do": "about"}) or {}
            note(f"{engine.variant.title}: {engine.error or engine.about['plan'] or engine.about['runner']}")
        engines += group
    return engines
