"""One run of `bench apply`, from the folder that it works in to the report."""

from __future__ import annotations

import contextlib
import datetime
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from kunlunfork import fork as forks
from kunlunfork.bench import contenders, machine, measure, report
from kunlunfork.bench.measure import Timed
from kunlunfork.bench.report import Verdict
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.sources.base import Settings


def bench_apply(
    content: Content, version: str | None, rounds: int, folder: Path, settings: Settings
) -> tuple[dict[str, Any], tuple[Timed, ...], tuple[Verdict, ...]]:
    """Time all contenders in turns, in a folder of their own below `folder` that is removed at the end.

    Args:
        version: the pin's; the newest where it is None.

    Returns:
        the report for JSON, the readings, and how they stand to the targets.

    Raises:
        ForkError: no pin or no sdist, a contender failed or did something else than the others, no space.
    """
    from kunlunfork.sources.pypi import fetch_sdist

    fork = forks.load(content, version or content.newest())
    sdist = fetch_sdist(
        fork.pin, settings.cache.downloads, index_url=settings.index_url, offline=settings.offline,
        progress=settings.progress,
    )  # fmt: skip
    try:
        here = machine.look(folder)
        about: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": ["kunlunfork", *sys.argv[1:]],
            "version": fork.pin.version,
            "commit": machine.clone_commit(content.root),
            "patches": len(fork.patches),
            "series_hash": fork.series_hash,
            "overlay_hash": fork.overlay_hash,
            "machine": asdict(here),
        }
        with _ended_politely(), tempfile.TemporaryDirectory(prefix=".kunlunfork-bench-", dir=folder) as name:
            field = contenders.Field(content, fork, sdist.resolve(), Path(name).resolve())
            steps = contenders.steps(field, quilt=here.quilt is not None)
            timed = measure.in_turns(
                steps, rounds, field.scratch, lambda f: contenders.check_same(field, f), settings.progress
            )
    except OSError as e:
        raise ForkError(
            f"nothing could be measured in {folder}",
            found=e.strerror or str(e),
            expected="a folder that this user may write, with 0.8 GB of space for each round and the warm-up",
            fix="name another one: --dir DIR",
        ) from e
    about["load_after"] = machine.load()
    about["missing"] = {} if here.quilt is not None else {"quilt": "not installed, so not measured"}
    verdicts = report.judge(timed)
    return report.as_json(timed, verdicts, about), timed, verdicts


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """Let a signal that ends this process end it as Ctrl-C does: some GB of trees would stay otherwise."""

    def stop(number: int, frame: object) -> NoReturn:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # the trees are being removed
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write(file: Path, result: dict[str, Any]) -> None:
    """Write a report (raises `ForkError`)."""
    try:
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise ForkError(f"{file} cannot be written", found=e.strerror or str(e)) from e
