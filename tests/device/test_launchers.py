"""Who is asked what when processes die: the cases behind the one that killed its process are still run, and named."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import launchers

# Three sites of four cases; what its third argument names goes wrong in the way of its second.
WORKER = """
import json, os, sys, time
how, where = sys.argv[1:]
def say(**row): print(json.dumps(row), flush=True)
for line in sys.stdin:
    if line.strip() == "count":
        say(last=True, count=3)
        continue
    site, first = line.split()
    for case in range(int(first), 4):
        name = dict(launcher=f"launcher{site}", case=f"case{case}")
        say(begin=case, **name)
        if f"{site}.{case}" == where:
            if how == "dies": os.kill(os.getpid(), 11)
            if how == "hangs": time.sleep(60)
            say(**name, outcome="error", why="CUDA error", process=os.getpid())
            say(last=True, spoilt=case)
            break
        say(**name, outcome="ok", why="", process=os.getpid())
    else:
        say(last=True)
"""


class Team(launchers.Team):
    def __init__(self, options: argparse.Namespace, how: str, where: str) -> None:
        super().__init__(options)
        self.how, self.where = how, where

    def start(self) -> subprocess.Popen[str]:
        own = [sys.executable, "-c", WORKER, self.how, self.where]
        return subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


DIES, SPOILS, HANGS = (
    ("dies", "died", "exit code -11"),
    ("spoils", "error", "CUDA error"),
    ("hangs", "died", "exit code -9"),
)


@pytest.mark.parametrize(
    ("how", "outcome", "why", "where"),
    [*((*how, where) for how in (DIES, SPOILS) for where in ("1.0", "1.2", "2.3")), (*HANGS, "0.1")],
)
def test_one_case_hides_no_other(
    how: str, outcome: str, why: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "PATIENCE", 8.0 if how == "hangs" else 60.0)
    options = argparse.Namespace(what="ops", backend="torch", device="cpu", processes=2, out=tmp_path / "rows.json")
    rows = Team(options, how, where).run()
    everything = [(f"launcher{s}", f"case{c}") for s in range(3) for c in range(4)]
    assert [(r["launcher"], r["case"]) for r in rows] == everything
    site, case = where.split(".")
    (bad,) = [r for r in rows if r["outcome"] != "ok"]
    assert (bad["launcher"], bad["case"], bad["outcome"], bad["why"]) == (
        f"launcher{site}",
        f"case{case}",
        outcome,
        why,
    )
    # Each site, and what lies behind a bad case, had a process of its own.
    homes: dict[tuple[str, bool], set[int]] = {}
    for row in rows:
        if row is not bad:
            behind = row["launcher"] == bad["launcher"] and row["case"] > bad["case"]
            homes.setdefault((row["launcher"], behind), set()).add(row["process"])
    assert all(len(found) == 1 for found in homes.values())
    assert len(set.union(*homes.values())) == len(homes)


def test_a_process_that_never_starts_is_said(tmp_path: Path) -> None:
    options = argparse.Namespace(what="ops", backend="torch", device="cpu", processes=2, out=tmp_path / "rows.json")
    team = Team(options, "fine", "")
    (row,) = [team.keep(2, [{}], 1)] and team.rows
    assert (row["launcher"], row["outcome"], row["why"]) == ("site 2", "died", "exit code 1, before its first case")
