"""`kunlunfork matrix run --executor ray`: shards of a run as tasks of a Ray cluster.

Each task starts `kunlunfork matrix run --shard I/N` with the Python of its node, where kunlunfork must be installed,
and sends the lines of results as they come. A task that is lost runs again, without the cells that had come.
Ray is imported here alone.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kunlunfork import content as contents
from kunlunfork import fork, outfile, switches
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import results, settings
from kunlunfork.matrix.cells import summary
from kunlunfork.matrix.gather import Gather
from kunlunfork.matrix.run import Options, Result, default_out, kept
from kunlunfork.progress import Progress

# What a node runs; a test has another.
PROGRAM: tuple[str, ...] = ("-m", "kunlunfork")
# More shards than places for them: a machine that is lost, or slow, has less.
SHARDS_A_SLOT = 2
ATTEMPTS = 3
# Device -> the resource of Ray that stands for one.
RESOURCES = {"cpu": "CPU", "cuda": "GPU", "xpu": "XPU"}


def demand(device: str, processes: int) -> dict[str, Any]:
    """What a task asks of Ray."""
    if device == "cpu":
        return {"num_cpus": processes}
    if device == "cuda":
        return {"num_cpus": 1, "num_gpus": 1}
    return {"num_cpus": 1, "resources": {RESOURCES[device]: 1}}


def slots(nodes: Sequence[Mapping[str, Any]], device: str, processes: int | None) -> tuple[int, int]:
    """How many tasks can run at a time, and the processes of each: those asked for, or what every node has.

    Raises:
        ForkError: no node has the device.
    """
    name = RESOURCES[device]
    have = [int(node["Resources"].get(name, 0)) for node in nodes if node["Alive"]]
    have = [n for n in have if n]
    each = (processes or min(have, default=1)) if device == "cpu" else 1
    count = sum(n // each for n in have)
    if not count:
        raise ForkError(
            f"no node of the Ray cluster has {each} {name}", found=f"{len(nodes)} nodes with {sum(have)} {name}",
            expected="a node that can run a task", fix="start one, or ask for fewer processes: -n",
        )  # fmt: skip
    return count, each if device == "cpu" else processes or 1


def run(content: Content, cache: Cache, options: Options, address: str | None, progress: Progress) -> Result:
    """Run tiers of the matrix on a Ray cluster.

    options: `processes` of 0 means what every node has.

    Raises:
        ForkError: Ray is not installed or not reached, no node has the device, a node has another fork, a shard failed
            over and over, or the file of results cannot be read or written.
    """
    pin = content.pin(options.version)
    out = options.out or default_out(cache, options, pin.version)
    outfile.check(out, parents=True)
    before = results.load([out]) if options.resume and out.exists() else results.Loaded(())
    loaded = fork.load(content, pin.version)
    ray = _ray(address)
    count, each = slots(ray.nodes(), options.device, options.processes or None)
    shards = [f"{i}/{SHARDS_A_SLOT * count}" for i in range(1, SHARDS_A_SLOT * count + 1)]
    with results.Writer(out, append=options.resume) as file:
        old = out.read_bytes() if options.resume else b""
        gather = Gather(file, pin.version, loaded.series_hash, loaded.overlay_hash)
        argv = [*PROGRAM, *_arguments(content, options, pin.version, each)]
        task = ray.remote(num_returns="streaming", max_retries=0, **demand(options.device, each))(_work())
        crew = _Crew(ray, task, argv, gather, len(options.tiers), old, progress)
        crew.work(shards)
    found = results.load([out]).cells
    mine = kept(found, pin.version, options, (loaded.series_hash, loaded.overlay_hash))
    chosen = settings.settings(options.mode, settings.on_off(switches.read(content, pin.version, {})))
    versions = mine[-1].run.versions if mine else {}
    names = tuple(s.name for s in chosen)
    resumed = len(kept(before.cells, pin.version, options, (loaded.series_hash, loaded.overlay_hash), errors=False))
    return Result(out, names, loaded.overlay_hash, versions, summary(mine), resumed)


def _ray(address: str | None) -> Any:
    try:
        import ray
    except ImportError as e:
        raise ForkError(
            "Ray is not installed", found=str(e), expected="Ray in this Python and on every node",
            fix="pip install 'kunlunfork[ray]'",
        ) from e  # fmt: skip
    if not ray.is_initialized():
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as e:
            raise ForkError(
                f"no Ray cluster is reached at {address or 'the usual places'}", found=str(e).strip()[:500],
                expected="a cluster that runs", fix="start one (ray start --head), or name its address: --address",
            ) from e  # fmt: skip
        finally:
            # Ray's own would end the process on the spot.
            signal.signal(signal.SIGTERM, handler)
    return ray


def _knock(address: str | None) -> None:
    """Raises `OSError` where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _arguments(content: Content, options: Options, version: str, processes: int) -> list[str]:
    words = ["matrix", "run", "--vllm", version, "--device", options.device, "--tier", ",".join(options.tiers)]
    words += ["--switches", options.mode, "--backend", ",".join(options.backends), "-n", str(processes)]
    words += ["--random", str(options.random), f"--seed={options.seed}", "--steps", str(options.steps)]
    words += [f"-k{options.expression}"] if options.expression else []
    words += [f"--cell={cell}" for cell in options.cells]
    words += [f"--python={options.python}"] if options.python else []
    # A clone is found at the same path, or its head is of another fork and refused.
    words += [] if contents.is_installed(content) else [f"--repo={content.root}"]
    return words


class _Crew:
    """Runs shards as `task`s, which are never retried by Ray itself: it would start from nothing.

    tiers: how many a shard runs; old: the file of results that the run goes on with.
    """

    def __init__(
        self, ray: Any, task: Any, argv: Sequence[str], gather: Gather, tiers: int, old: bytes, progress: Progress
    ) -> None:
        self.ray = ray
        self.task = task
        self.argv = list(argv)
        self.gather = gather
        self.tiers = tiers
        self.old = old
        self.progress = progress
        self.tries: dict[str, int] = {}
        self.running: dict[Any, str] = {}
        self.ends: dict[str, tuple[int, str]] = {}

    def work(self, shards: Sequence[str]) -> None:
        """Run all shards. Interrupted or failed, it cancels those that run."""
        try:
            for shard in shards:
                self._start(shard)
            with self.progress.task(f"running {len(shards)} shards on the cluster", None):
                told = 0
                while self.running:
                    ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=1.0)
                    for stream in ready:
                        self._next(stream)
                    if self.gather.ended >= told + 500:
                        told = self.gather.ended
                        self.progress.note(f"{told} of {self.gather.planned} cells known so far")
        finally:
            for stream in self.running:
                self.ray.cancel(stream, force=False)

    def _start(self, shard: str) -> None:
        self.tries[shard] = self.tries.get(shard, 0) + 1
        self.ends.pop(shard, None)
        before = self.old + self.gather.before(shard)
        self.running[self.task.remote([*self.argv, "--shard", shard], before)] = shard

    def _next(self, stream: Any) -> None:
        shard = self.running[stream]
        try:
            kind, value = self.ray.get(next(stream))
        except StopIteration:
            del self.running[stream]
            code, tail = self.ends.get(shard, (-1, "the task ended early"))
            if code not in (0, 1) or not self.gather.whole(shard, self.tiers):
                self._again(shard, f"exit code {code}", tail)
            return
        except self.ray.exceptions.RayError as e:
            del self.running[stream]
            self._again(shard, type(e).__name__, str(e))
            return
        if kind == "lines":
            self.gather.take(shard, value)
        else:
            self.ends[shard] = value

    def _again(self, shard: str, why: str, details: str) -> None:
        if self.tries[shard] >= ATTEMPTS:
            raise ForkError(
                f"shard {shard} failed {ATTEMPTS} times", found=why, details=details.strip().splitlines()[-20:],
                fix="mend what it says, then go on: run the command again with --results FILE and --resume",
            )  # fmt: skip
        self.progress.warn(f"shard {shard} was lost ({why}): its cells that had not come run again")
        self._start(shard)


def _work() -> Any:
    """The function that a node runs. Made here, it travels as code: the node needs no module of this name to start."""

    def work(argv: list[str], before: bytes) -> Iterator[tuple[str, Any]]:
        import ctypes
        import signal
        import subprocess
        import tempfile
        import time

        def end_with_parent() -> None:
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

        with tempfile.TemporaryDirectory(prefix="kunlunfork-ray-") as folder:
            file, log = Path(folder) / "cells.jsonl", Path(folder) / "log"
            file.write_bytes(before)
            with log.open("wb") as out:
                child = subprocess.Popen(
                    [sys.executable, *argv, "--results", str(file), "--resume"],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=end_with_parent,
                )  # fmt: skip
            try:
                at = len(before)
                ended = False
                while not ended:
                    ended = child.poll() is not None
                    with file.open("rb") as lines:
                        lines.seek(at)
                        data = lines.read()
                    data = data[: data.rfind(b"\n") + 1]
                    at += len(data)
                    if data:
                        yield "lines", data
                    if not ended:
                        time.sleep(0.3)
                yield "end", (child.returncode, log.read_bytes()[-4000:].decode(errors="replace"))
            finally:
                if child.poll() is None:
                    child.terminate()
                    child.wait()

    return work
