"""Asks another interpreter, in a process that may crash, hang or write without end; that is a finding, not an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROBES = Path(__file__).resolve().parent / "probes"
_TICK = 0.02  # seconds
_MOST_OUTPUT = 16 << 20  # bytes


@dataclass(frozen=True)
class Answer:
    """What a child said before its end.

    `trouble` is how it ended where it did not come to its end (a crash, no answer in time), and `doing` what it was at.
    """

    facts: Mapping[str, Any]
    trouble: str | None = None
    doing: str | None = None

    def get(self, name: str) -> Any:
        return self.facts.get(name)


def ask(python: Path, probe: str, given: Mapping[str, Any], *, tree: Path | None, limit: float) -> Answer:
    """Run a probe (a file of `probes/`) in an interpreter.

    Args:
        given: what the probe is told.
        tree: a folder whose packages come before the interpreter's own.
        limit: seconds after which it is killed, with everything that it has started.
    """
    with tempfile.TemporaryDirectory(prefix="kunlunfork-doctor-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        said, log = work / "said", work / "log"
        # No bytecode: a probe imports what it is asked about, and leaves nothing there.
        args = [str(python), "-B", str(_PROBES / f"{probe}.py"), str(said), json.dumps(given)]
        with log.open("wb") as out:
            try:
                child = subprocess.Popen(
                    args, cwd=work, env=_environment(tree), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as e:
                return Answer({}, f"{python} cannot be started: {e.strerror or e}")
            trouble = _watch(child, (said, log), limit)
        return _answer(said, log, trouble)


def _environment(tree: Path | None) -> dict[str, str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if tree is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tree), env.get("PYTHONPATH"))))
    return env


def _watch(child: subprocess.Popen[bytes], files: Sequence[Path], limit: float) -> str | None:
    """Wait for the end of a child, or make it; how it ended, where that was not well."""
    deadline, trouble = time.monotonic() + limit, None
    try:
        # WNOWAIT: while nobody has waited for it, its id is not another's, and its whole session can be killed.
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                trouble = f"no end within {limit:g} seconds"
                break
            if sum(f.stat().st_size for f in files if f.exists()) > _MOST_OUTPUT:
                trouble = f"more than {_MOST_OUTPUT >> 20} MiB of output"
                break
            time.sleep(_TICK)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    if trouble is not None or code == 0:
        return trouble
    return f"killed by {_signal(-code)}" if code < 0 else f"exit status {code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _answer(said: Path, log: Path, trouble: str | None) -> Answer:
    facts: dict[str, Any] = {}
    doing = None
    for line in said.read_bytes().splitlines() if said.exists() else ():
        try:
            told = json.loads(line)
            doing = told.pop("doing", doing)
            facts.update(told)
        except (ValueError, AttributeError, TypeError):
            break  # the last line of one that was killed while it wrote
    if trouble is None and "done" not in facts:
        trouble = "it ended without an answer"
    if trouble is not None and not trouble.startswith("no end"):
        last = _last_line(log)
        trouble += f", {last}" if last else ""
    return Answer(facts, trouble, doing)


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines() or [""]
    return "".join(c if c.isprintable() else " " for c in lines[-1][:200])
