"""Every launcher of the fork on a device, against upstream's Triton kernels there.

python launchers.py ops|replay [--backend torch] [--processes N] [--only TEXT] --out FILE

`ops` compares all cases of tests/parity, without any sync allowed. `replay` captures each launcher on one input in a
CUDA graph and replays it on others (tests/parity/replay.py). Each site runs in a process of its own; where a case kills
it, or leaves the device in a state that nothing can be learnt from, another goes on with the next case. vLLM with the
fork is on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

PARITY = Path(__file__).resolve().parents[1] / "parity"
# Seconds for a case; to find pairs of inputs takes longest.
PATIENCE = 180.0
# A case with its name.
Unit = tuple[str, Callable[[], dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("ops", "replay"))
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    return report(Team(options).run())


class Team:
    """One process a thread, each asked for one site after another."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.rows: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def run(self) -> list[dict[str, Any]]:
        first = self.start()
        number = int(self.ask(first, "count")[-1].get("count", 0))
        end(first)
        for site in range(number):
            self.todo.put(site)
        threads = [threading.Thread(target=self.follow) for _ in range(min(self.options.processes, number))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.rows, key=lambda row: (row["launcher"], row["case"]))

    def start(self) -> subprocess.Popen[str]:
        own = [sys.executable, __file__, self.options.what, "--worker", "--backend", self.options.backend]
        own += ["--only", self.options.only]
        env = {**os.environ, "KUNLUN_PARITY_DEVICE": self.options.device, "VLLM_LOGGING_LEVEL": "ERROR"}
        return subprocess.Popen(own, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, child: subprocess.Popen[str], question: str) -> list[dict[str, Any]]:
        """The lines of the answer, of which the last is marked so unless the process died or said nothing for long."""
        assert child.stdin is not None and child.stdout is not None
        found: list[dict[str, Any]] = []
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
            while not (found and found[-1].get("last")):
                watch = threading.Timer(PATIENCE, child.kill)
                watch.start()
                line = child.stdout.readline()
                watch.cancel()
                if not line:
                    break
                found.append(json.loads(line))
        except OSError:
            pass  # gone
        return found or [{}]

    def follow(self) -> None:
        """Each site in a process of its own; the next process imports while a site runs."""
        child = self.start()
        while True:
            try:
                site = self.todo.get_nowait()
            except queue.Empty:
                break
            case: int | None = 0
            while case is not None:
                spare = self.start()
                answer = self.ask(child, f"{site} {case}")
                case = self.keep(site, answer, end(child))
                child = spare
        end(child)

    def keep(self, site: int, answer: list[dict[str, Any]], code: int) -> int | None:
        """Write down what came; the case to go on with where the process is no good any more."""
        rows = [row for row in answer if "outcome" in row]
        begun = [row for row in answer if "begin" in row]
        last, go_on = answer[-1], None
        if "spoilt" in last:
            go_on = last["spoilt"] + 1
        elif not last.get("last"):
            name = {"launcher": f"site {site}", "case": "", **(begun[-1] if begun else {})}
            why = f"exit code {code}" if begun else f"exit code {code}, before its first case"
            rows.append({"launcher": name["launcher"], "case": name["case"], "outcome": "died", "why": why})
            go_on = begun[-1]["begin"] + 1 if begun else None
        with self.lock:
            self.rows += rows
            self.write()
        return go_on

    def write(self) -> None:
        """What is known so far: the time may be up before the last site."""
        options = self.options
        said = {"what": options.what, "backend": options.backend, "device": options.device, "rows": self.rows}
        options.out.write_text(json.dumps(said, indent=0))


def end(child: subprocess.Popen[str]) -> int:
    child.kill()
    return child.wait()


def work(options: argparse.Namespace) -> None:
    """Answers `SITE CASE`: that case of a site and those behind it, each announced before it runs."""
    sys.path.insert(0, str(PARITY))
    answers = os.fdopen(os.dup(1), "w")
    # What vLLM prints is not an answer.
    os.dup2(2, 1)
    if os.environ["KUNLUN_PARITY_DEVICE"] == "cpu":
        import interpreter

        interpreter.prepare()
    import harness

    def say(row: dict[str, Any]) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    sites = [s for s in harness.all_sites() if options.backend in s.backends and options.only in s.launcher]
    for line in sys.stdin:
        if line.strip() == "count":
            say({"last": True, "count": len(sites)})
            continue
        number, first = (int(word) for word in line.split())
        say({"last": True, **one_by_one(sites[number], options, first, say)})


def one_by_one(site: Any, options: argparse.Namespace, first: int, say: Callable[[dict[str, Any]], None]) -> Any:
    """Says what became of each case; ends at one that leaves the device in a state that nothing can be learnt from."""
    import torch

    began = time.perf_counter()
    units = ops(site, options.backend) if options.what == "ops" else replays(site, options.backend)
    for index, (name, unit) in list(enumerate(units))[first:]:
        say({"begin": index, "launcher": site.launcher, "case": name})
        row = {"launcher": site.launcher, "case": name, "outcome": "ok", "why": ""}
        try:
            row |= unit()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except Exception as e:  # noqa: BLE001 - a launcher may do anything to a device
            say({**row, "outcome": "error", "why": _said(e)})
            return {"spoilt": index}
        say({**row, "site_seconds": round(time.perf_counter() - began, 1)})
    return {}


def ops(site: Any, backend: str) -> list[Unit]:
    import harness
    from nosync import HostSync

    def unit(case: Any) -> dict[str, Any]:
        try:
            return {"max_error": harness.check(site, case, backend).max_error}
        except (harness.Mismatch, HostSync) as e:
            return {"outcome": "differs", "why": _said(e)}
        except Exception as e:
            if "CUDA error" in str(e):
                raise
            return {"outcome": "error", "why": _said(e)}

    return [(case.name, functools.partial(unit, case)) for case in harness.all_cases(site)]


def replays(site: Any, backend: str) -> list[Unit]:
    import replay

    def unit(verdict: Callable[[], Any]) -> dict[str, Any]:
        row = asdict(verdict())
        row.pop("pair")
        return {**row, "expected": site.launcher in replay.ON_THE_HOST}

    return [(name, functools.partial(unit, verdict)) for name, verdict in replay.units(site, backend)]


def _said(e: BaseException) -> str:
    lines = [line.strip() for line in str(e).strip().splitlines()]
    return f"{type(e).__name__}: {' | '.join(lines)}"[:900]


def report(rows: list[dict[str, Any]]) -> int:
    print(dict(Counter(row["outcome"] for row in rows)), "of", len({row["launcher"] for row in rows}), "launchers")
    bad = 0
    for row in rows:
        if row["outcome"] != "ok":
            note = " (expected)" if row.get("expected") else ""
            print(f"  {row['launcher']}, {row['case']}: {row['outcome']}{note}: {row['why'][:300]}")
            bad += not row.get("expected")
    took: dict[str, float] = {}
    for row in rows:
        took[row["launcher"]] = max(took.get(row["launcher"], 0.0), row.get("site_seconds", 0.0))
    slowest = sorted(took, key=lambda launcher: -took[launcher])[:4]
    print("slowest:", ", ".join(f"{launcher} {took[launcher]} s" for launcher in slowest))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
