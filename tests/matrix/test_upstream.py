"""Upstream's tests in two trees: real pytest processes on small tests that ask which tree they run in."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from matrixkit import RUN
from support import REPO

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import upstream, upstreamtests
from kunlunfork.matrix.cells import Cell
from kunlunfork.matrix.environment import Engine
from kunlunfork.matrix.ops import Log
from kunlunfork.matrix.selection import Selection, Shard
from kunlunfork.matrix.upstream import Place
from kunlunfork.progress import Silent

FILE = "tests/test_a.py"
ALL = Selection()
HEAD = """
import os, pathlib, signal, subprocess, sys, time
import pytest
import which
fork = which.TREE == "fork"
here = pathlib.Path(__file__).parent
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("fork", "tools", "release/tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fork" / "which.py").write_text("TREE = 'fork'\n")
    (tmp_path / "tools" / "which.py").write_text("TREE = 'upstream'\n")
    engine = Engine(tmp_path, Path(sys.executable), tmp_path, tmp_path / "triton", {})
    return Place(engine, tmp_path / "release", tmp_path / "fork", tmp_path / "tools")


@pytest.fixture
def own(tmp_path: Path) -> Content:
    shutil.copytree(REPO / "tests" / "parity" / "upstream", tmp_path / "content" / "tests" / "parity" / "upstream")
    return Content(tmp_path / "content", clone=True)


def run(
    own: Content, place: Place, body: str | dict[str, str], selection: Selection = ALL, limit: float = 60.0
) -> dict[str, Cell]:
    files = {FILE: body} if isinstance(body, str) else body
    for name, text in files.items():
        (place.tests / name).write_text(HEAD + text)
    found: list[Cell] = []
    planned: list[int] = []
    log = Log(lambda tier, count, of="": planned.append(count), found.append)
    upstream.run(own, place, list(files), RUN, selection, 2, None, log, Silent(), limit=limit)
    assert planned == [len(files)] or selection is not ALL
    assert all(cell.run.tier == "upstream" for cell in found)
    return {cell.test: cell for cell in found}


def test_what_each_tree_passes(own: Content, place: Place) -> None:
    cells = run(own, place, """
def test_both(): pass
def test_lost(): assert not fork, "only upstream's"
def test_gained(): assert fork, "no kernels"
def test_neither(): raise RuntimeError("no GPU")
@pytest.mark.skip("not here")
def test_skipped(): pass
@pytest.mark.skipif(fork, reason="switched off")
def test_skipped_in_the_fork(): pass
@pytest.fixture
def broken():
    if fork: raise OSError("no fixture")
def test_setup(broken): pass
@pytest.mark.parametrize("x", ["a::b", "é"])
def test_names(x): pass
@pytest.mark.xfail(strict=True)
def test_expected(): assert False
""")  # fmt: skip
    outcomes = {test.removeprefix(f"{FILE}::"): cell.outcome for test, cell in cells.items()}
    assert outcomes == {
        "test_both": "passed", "test_lost": "failed", "test_gained": "passed", "test_neither": "skipped",
        "test_skipped": "skipped", "test_skipped_in_the_fork": "failed", "test_setup": "failed",
        "test_names[a::b]": "passed", "test_names[\\xe9]": "passed", "test_expected": "skipped",
    }  # fmt: skip
    said = {test.removeprefix(f"{FILE}::"): cell.message or "" for test, cell in cells.items()}
    assert "only upstream's" in said["test_lost"]
    assert said["test_gained"].startswith("passes only in the fork's tree; in upstream's: failed: ")
    assert "no GPU" in said["test_neither"]
    assert "no fixture" in said["test_setup"]
    assert {cell.launcher for cell in cells.values()} == {FILE}


def test_a_file_that_cannot_be_imported_in_the_fork(own: Content, place: Place) -> None:
    cells = run(own, place, "if fork: raise ImportError('gone')\ndef test_it(): pass\n")
    assert {test: cell.outcome for test, cell in cells.items()} == {FILE: "skipped", f"{FILE}::test_it": "failed"}
    assert "gone" in (cells[FILE].message or "")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11"),
        ("os._exit(3)", "exit code 3"),
        ("time.sleep(600)", "took more than 8 s"),
    ],
)
def test_a_process_that_dies_or_hangs_loses_what_it_was_in_and_what_came_after(
    own: Content, place: Place, how: str, says: str
) -> None:
    cells = run(own, place, f"""
def test_before(): pass
def test_it():
    if fork: {how}
def test_after(): pass
""", limit=8.0)  # fmt: skip
    outcomes = {test.removeprefix(f"{FILE}::"): cell.outcome for test, cell in cells.items()}
    assert outcomes == {"test_before": "passed", "test_it": "failed", "test_after": "failed"}
    assert says in (cells[f"{FILE}::test_it"].message or "")
    assert "not collected" in (cells[f"{FILE}::test_after"].message or "")


def test_a_flaky_test_is_no_loss(own: Content, place: Place) -> None:
    cells = run(own, place, """
def test_flaky():
    mark = here / f"once-{which.TREE}"
    first = not mark.exists()
    mark.touch()
    assert not (fork and first)
def test_lost(): assert not fork
""")  # fmt: skip
    outcomes = {test.removeprefix(f"{FILE}::"): cell.outcome for test, cell in cells.items()}
    assert outcomes == {"test_flaky": "passed", "test_lost": "failed"}


def test_what_a_test_started_ends_with_it(own: Content, place: Place) -> None:
    run(own, place, """
def test_it():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (here / f"pid-{which.TREE}").write_text(str(child.pid))
""")  # fmt: skip
    for tree in ("fork", "upstream"):
        pid = int((place.tests / "tests" / f"pid-{tree}").read_text())
        stat = Path(f"/proc/{pid}/stat")
        deadline = time.monotonic() + 20
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.05)


def test_only_files_that_are_left(own: Content, place: Place) -> None:
    files = {f"tests/test_{name}.py": "def test_it(): pass\n" for name in "abcd"}
    done = Selection(done={"upstream": frozenset({"tests/test_a.py::test_it", "tests/test_c.py::test_it"})})
    assert set(run(own, place, files, done)) == {"tests/test_b.py::test_it", "tests/test_d.py::test_it"}
    named = Selection(names=("tests/test_b.py::test_it",))
    assert set(run(own, place, files, named)) == {"tests/test_b.py::test_it"}
    shards = [set(run(own, place, files, Selection(shard=Shard(i, 2)))) for i in (1, 2)]
    assert shards[0] | shards[1] == {f"{file}::test_it" for file in files}
    assert not shards[0] & shards[1]
    with pytest.raises(ForkError, match="none of upstream's tests is left"):
        run(own, place, files, Selection(names=("tests/test_z.py::test_it",)))


def test_a_file_without_tests_is_an_error(own: Content, place: Place) -> None:
    cells = run(own, place, "")
    assert {name: (cell.outcome, cell.case) for name, cell in cells.items()} == {FILE: ("error", "(no test)")}


def test_an_interrupt_ends_the_processes(own: Content, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.tests / "tests" / "test_b.py").write_text(HEAD)

    def interrupt(cell: Cell) -> None:
        raise KeyboardInterrupt

    (place.tests / FILE).write_text(HEAD + "def test_it(): pass\n")
    (place.tests / "tests" / "test_b.py").write_text(
        HEAD + "def test_it():\n    (here / 'pid').write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        upstream.run(
            own, place, [FILE, "tests/test_b.py"], RUN, Selection(), 4, None, Log(lambda *_: None, interrupt), Silent()
        )
    pid = place.tests / "tests" / "pid"
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_the_pins_name_their_tests(content: Content) -> None:
    found = upstreamtests.load(content, "0.25.1", "cpu")
    assert all(file.startswith("tests/") and file.endswith(".py") for file in found.files)
    assert len(set(found.files)) == len(found.files)
    with pytest.raises(ForkError, match="no tests of upstream's are named"):
        upstreamtests.load(content, "0.1", "cpu")


def test_a_second_run_that_comes_to_no_test_hides_no_loss(own: Content, place: Place) -> None:
    cells = run(own, place, """
mark = here / f"once-{which.TREE}"
if mark.exists(): os._exit(3)
mark.touch()
def test_lost(): assert not fork
""")  # fmt: skip
    assert {test: cell.outcome for test, cell in cells.items()} == {f"{FILE}::test_lost": "failed"}
