from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import REPO, VERSION

from kunlunfork.bench import rebase, rebasecases, rebaseoracle, rebasetools
from kunlunfork.bench.rebasecases import KINDS, MARK, Case, Function
from kunlunfork.bench.rebasetools import Job, Outcome
from kunlunfork.cache import ENV, Cache
from kunlunfork.content import Content
from kunlunfork.progress import Silent
from kunlunfork.store import Store

OLD = b'''\
import os
from typing import (
    Any,
    List,
)


class A:
    @property
    def size(self):
        return 1

    @cache
    def run(self, a, b=None, **rest):
        """Run."""
        x = a
        if b:
            x = b
            go(x)
        else:
            stop(x)
        return x


def other(a, b=None):
    x = a
    if b:
        x = b
        go(x)
    return x
'''
RUN = Function(b"vllm/a.py", "A.run")


def cases(kind: str, count: int = 40) -> list[Case]:
    rng = random.Random(1)
    made = [rebasecases.make(kind, RUN, OLD, rng) for _ in range(count)]
    found = {case.ours: case for case in made if case is not None}
    assert found
    return [*found.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_in_its_place_is_right_and_nowhere_else(kind: str) -> None:
    for case in cases(kind):
        assert case.ours != OLD
        assert rebaseoracle.verdict(case, OLD, case.ours) == "right"
        new = OLD.replace(b"import os\n", b"import os\nimport sys\n").replace(b"return 1", b"return 2")
        right = case.ours.replace(b"import os\n", b"import os\nimport sys\n").replace(b"return 1", b"return 2")
        assert rebaseoracle.verdict(case, new, right) == "right"
        assert rebaseoracle.verdict(case, new, case.ours) == "wrong", "the rest is not upstream's"
        assert rebaseoracle.verdict(case, OLD, OLD) == "wrong", "nothing was done"
        assert rebaseoracle.verdict(case, OLD, case.ours + b"(") == "wrong"
        assert rebaseoracle.verdict(case, OLD, case.ours.replace(MARK.encode(), b"kunlun_mark2")) != "right" or (
            kind == "delete"
        )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "import"])
def test_the_same_edit_in_a_lookalike_is_wrong(kind: str) -> None:
    rng = random.Random(2)
    for case in cases(kind):
        for _ in range(30):
            elsewhere = rebasecases.make(kind, Function(b"vllm/a.py", "other"), OLD, rng)
            assert elsewhere is not None
            assert rebaseoracle.verdict(case, OLD, elsewhere.ours) == "wrong"


def test_another_place_in_the_function_is_doubtful_or_wrong() -> None:
    case = next(c for c in cases("insert") if b"        x = a\n        kunlun_mark = 1\n" in c.ours)
    moved = OLD.replace(b"            stop(x)\n", b"            kunlun_mark = 1\n            stop(x)\n", 1)
    assert rebaseoracle.verdict(case, OLD, moved) == "doubtful"
    twice = case.ours.replace(b"        return x\n", b"        kunlun_mark = 1\n        return x\n", 1)
    assert rebaseoracle.verdict(case, OLD, twice) == "wrong"


def test_a_name_imported_from_elsewhere_is_wrong() -> None:
    case = next(c for c in cases("import") if b"    kunlun_mark,\n" in c.ours)
    elsewhere = OLD.replace(b"import os\n", b"import os\nfrom sys import kunlun_mark\n")
    assert rebaseoracle.verdict(case, OLD, elsewhere) == "wrong"


def test_a_deletion_that_upstream_made() -> None:
    for case in cases("delete"):
        assert rebaseoracle.verdict(case, case.ours, case.ours) == "right"


def test_the_same_seed_draws_the_same() -> None:
    files = {RUN.path: OLD, b"vllm/b.py": OLD.replace(b"class A", b"class B")}
    newer = {path: data.replace(b"return 1", b"return 2") for path, data in files.items()}
    first = rebasecases.draw(files, newer, [*KINDS], 24, 3)
    assert len(first) == 24 and {c.kind for c in first} == {*KINDS}
    assert rebasecases.draw(files, newer, [*KINDS], 24, 3) == first
    assert rebasecases.draw(files, newer, [*KINDS], 24, 4) != first
    assert rebasecases.draw(files, {}, [*KINDS], 24, 3) == []


LOOKALIKE = OLD.replace(
    b"    def run(self, a, b=None, **rest):\n", b"    def run(self, a):\n        return self.warm(a)\n\n    @cache\n"
    b"    def warm(self, a, b=None, **rest):\n",
)  # fmt: skip


def test_the_tools_on_a_lookalike(tmp_path: Path) -> None:
    """Those that go by text edit the wrong function; it is counted as wrong, and kunlunfork refuses."""
    inside = [c for c in cases("insert") if b"            go(x)\n            kunlun_mark = 1\n        else" in c.ours]
    jobs = [Job(c, OLD, c.ours, LOOKALIKE) for c in inside[:1]] + [Job(c, OLD, c.ours, OLD) for c in inside[:1]]
    tallies = rebase.compare(jobs, rebasetools.tools(), tmp_path, Silent(), "")
    assert (tallies["git 3-way"].total["wrong"], tallies["git 3-way"].total["right"]) == (1, 1)
    assert (tallies[rebase.OURS].total["refused"], tallies[rebase.OURS].total["right"]) == (1, 1)
    assert tallies["git apply"].total["wrong"] == 1
    assert [*tmp_path.iterdir()] == []


def test_what_a_tool_gets_wrong_is_counted(tmp_path: Path) -> None:
    def careless(jobs: Sequence[Job], scratch: Path) -> list[Outcome]:
        return [Outcome(job.new, "hope") for job in jobs]

    jobs = [Job(c, OLD, c.ours, OLD) for c in cases("insert")[:3]]
    told = rebase.compare(jobs, {"careless": careless}, tmp_path, Silent(), "")["careless"].as_json()
    assert (told["wrong"], told["ways"], told["kinds"]) == (3, {"hope": {"wrong": 3}}, {"insert": {"wrong": 3}})


def test_a_ladder_drops_what_a_step_lost(tmp_path: Path) -> None:
    made = cases("insert")[:3]
    path = RUN.path
    first = OLD.replace(b"import os\n", b"import os\nimport sys\n")
    releases = {"1": {path: first}, "2": {path: first.replace(b"def run(", b"def walk(")}, "3": {}}
    told = rebase.climb(made, releases, rebasetools.tools(), tmp_path, Silent())["tools"]["kunlunfork"]
    assert [told["steps"][v]["right"] for v in "123"] == [3, 0, 0]
    assert (told["arrived"], told["refused"], told["wrong"]) == (0, 3, 0)


def test_what_upstream_made_as_well_has_arrived(tmp_path: Path) -> None:
    case = cases("delete")[0]
    releases = {"1": {RUN.path: case.ours}, "2": {RUN.path: case.ours + b"\n"}}
    for told in rebase.climb([case], releases, rebasetools.tools(), tmp_path, Silent())["tools"].values():
        assert (told["arrived"], told["upstreamed"], told["wrong"], told["refused"]) == (1, 1, 0, 0)


def _store(folder: Path) -> None:
    """Three releases of one file, in the store of a cache, and a clone with a pin of the first alone."""
    for name in ("patches", "overlay"):
        shutil.copytree(REPO / name / VERSION, folder / "clone" / name / VERSION)
    (folder / "clone" / "pyproject.toml").symlink_to(REPO / "pyproject.toml")
    store = Store(Cache(folder).store)
    pin = Content(REPO, clone=True).pin(VERSION)
    newer = OLD.replace(b"import os\n", b"import os\nimport sys\n")
    for version, origin, data in (
        (VERSION, pin.sdist_sha256, OLD), ("0.98.0", "a" * 64, newer), ("0.99.0", "b" * 64, newer),
    ):  # fmt: skip
        store.import_members(
            "sdist", version, origin, [(RUN.path, 0o100644, data), (b"setup.py", 0o100644, b"x = 1\n")]
        )


def _bench(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    where = ("--repo", folder / "clone", "--dir", folder)
    return subprocess.run(
        [sys.executable, "-m", "kunlunfork", "bench", "rebase", "--offline", *where, *args],
        env={**os.environ, ENV: str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_run(tmp_path: Path) -> None:
    _store(tmp_path)
    out = tmp_path / "out.json"
    there = {*tmp_path.iterdir()}
    done = _bench(tmp_path, "--releases", "0.98.0,0.99.0", "--n", "12", "--out", str(out))
    assert done.returncode == 0, done.stderr
    for text in ("git 3-way", "-> 0.98.0", "precision", "by kunlunfork", "12 of 12 arrived by kunlunfork"):
        assert text in done.stdout
    result = json.loads(out.read_text())
    assert (result["seed"], result["count"], result["kinds"]) == (7, 12, [*KINDS])
    assert {"cpu", "git", "load"} <= result["machine"].keys() and "commit" in result
    assert [leap["tools"]["kunlunfork"]["right"] for leap in result["leaps"]] == [12, 12]
    assert [*result["ladder"]["tools"]["kunlunfork"]["steps"]] == ["0.98.0", "0.99.0"]
    assert {*tmp_path.iterdir()} - there == {out}, "the scratch folder is gone"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--releases", "0.97.0"], "there is no vLLM 0.97.0"),
        (["--releases", VERSION], "is not newer"),
        (["--releases", ","], "no releases given"),
        (["--releases", "0.99.0", "--kinds", "insert,move"], "no such kind of edit: move"),
        (["--releases", "0.99.0", "--out", "/dev/null/x"], "cannot be written"),
    ],
)
def test_what_cannot_be_measured(args: list[str], message: str, tmp_path: Path) -> None:
    _store(tmp_path)
    done = _bench(tmp_path, *args)
    assert done.returncode == 1 and message in done.stderr
