"""Every launcher of the fork on a device, against upstream's Triton kernels there.

python launchers.py ops|replay [--backend torch] [--processes N] [--only TEXT] --out FILE

`ops` compares all cases of tests/parity, without any sync allowed. `replay` captures each launcher on one input in a
CUDA graph and replays it on others (tests/parity/replay.py). Sites run in processes that are replaced when a launcher
leaves the device in a state that nothing can be learnt from. vLLM with the fork is on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

PARITY = Path(__file__).resolve().parents[1] / "parity"
# A site with many forms of a kernel compiles for a minute.
PATIENCE = 300.0


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
        number = int(self.ask(first, "count")[0]["count"])
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
        """The lines of the answer; none where the process dies or says nothing for long."""
        assert child.stdin is not None and child.stdout is not None
        watch = threading.Timer(PATIENCE, child.kill)
        watch.start()
        found = []
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
            while line := child.stdout.readline():
                row = json.loads(line)
                found.append(row)
                if row.get("last"):
                    return found
        except OSError:
            pass  # gone
        finally:
            watch.cancel()
        return []

    def follow(self) -> None:
        child = self.start()
        while True:
            try:
                site = self.todo.get_nowait()
            except queue.Empty:
                break
            answer = self.ask(child, str(site))
            if not answer:
                row = {"launcher": f"site {site}", "case": "", "outcome": "died", "why": f"exit code {end(child)}"}
                answer = [row]
                child = self.start()
            elif answer[-1].get("spoilt"):
                end(child)
                child = self.start()
            with self.lock:
                self.rows += [row for row in answer if "launcher" in row]
                self.write()
        end(child)

    def write(self) -> None:
        """What is known so far: the time may be up before the last site."""
        options = self.options
        said = {"what": options.what, "backend": options.backend, "device": options.device, "rows": self.rows}
        options.out.write_text(json.dumps(said, indent=0))


def end(child: subprocess.Popen[str]) -> int:
    child.kill()
    return child.wait()


def work(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(PARITY))
    answers = os.fdopen(os.dup(1), "w")
    # What vLLM prints is not an answer.
    os.dup2(2, 1)
    if os.environ["KUNLUN_PARITY_DEVICE"] == "cpu":
        import interpreter

        interpreter.prepare()
    import harness
    import torch

    sites = [s for s in harness.all_sites() if options.backend in s.backends and options.only in s.launcher]
    for line in sys.stdin:
        rows: list[dict[str, Any]] = []
        last: dict[str, Any] = {"last": True}
        if line.strip() == "count":
            last["count"] = len(sites)
        else:
            began = time.perf_counter()
            site = sites[int(line)]
            try:
                rows = ops(site, options.backend) if options.what == "ops" else replays(site, options.backend)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
            except Exception as e:  # noqa: BLE001 - a launcher may do anything to a device
                last["spoilt"] = True
                rows.append({"launcher": site.launcher, "case": "", "outcome": "error", "why": _said(e)})
            rows = [{**row, "site_seconds": round(time.perf_counter() - began, 1)} for row in rows]
        for row in [*rows, last]:
            answers.write(json.dumps(row) + "\n")
        answers.flush()


def ops(site: Any, backend: str) -> list[dict[str, Any]]:
    import harness
    from nosync import HostSync

    rows = []
    for case in harness.all_cases(site):
        row = {"launcher": site.launcher, "case": case.name, "outcome": "ok", "why": ""}
        try:
            row["max_error"] = harness.check(site, case, backend).max_error
        except (harness.Mismatch, HostSync) as e:
            row.update(outcome="differs", why=_said(e))
        except Exception as e:
            row.update(outcome="error", why=_said(e))
            if "CUDA error" in str(e):
                raise
        rows.append(row)
    return rows


def replays(site: Any, backend: str) -> list[dict[str, Any]]:
    import replay

    rows = []
    for verdict in replay.check(site, backend):
        row = asdict(verdict)
        rows.append({**row, "case": row.pop("pair"), "expected": verdict.launcher in replay.ON_THE_HOST})
    return rows


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
    slowest = sorted({(row["site_seconds"], row["launcher"]) for row in rows if "site_seconds" in row})[-4:]
    print("slowest:", ", ".join(f"{launcher} {seconds} s" for seconds, launcher in slowest))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
