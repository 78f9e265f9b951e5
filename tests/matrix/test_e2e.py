"""The tier e2e: engines in processes that fail, die and hang, upstream's answers first, then the fork's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import e2ekit
import matrixkit
import pytest
from e2ekit import asked, call, case

from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import e2eengines, results
from kunlunfork.matrix.cells import Cell
from kunlunfork.matrix.run import Result
from kunlunfork.matrix.selection import Shard
from kunlunfork.progress import Silent


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run scenarios; what the file of results then has, by the cells' names without `e2e/`."""

    class Tier:
        content: Content
        out = tmp_path / "results.jsonl"
        result: Result

        def make(self, *scenarios: dict[str, Any]) -> Content:
            self.content = e2ekit.make(tmp_path / "content", [e2ekit.copy(s) for s in scenarios])
            matrixkit.replace_engine(monkeypatch, self.content)
            return self.content

        def run(self, **more: Any) -> dict[str, Cell]:
            options = matrixkit.options(self.out, **{"tiers": ("e2e",), "mode": "all-on", **more})
            self.result = matrixkit.start(self.content, options)
            cells = results.load([self.out]).cells
            assert all(cell.run.tier == "e2e" for cell in cells)
            return {cell.test.removeprefix("e2e/"): cell for cell in cells}

    (tmp_path / "content").mkdir()
    return Tier()


def outcomes(cells: dict[str, Cell]) -> dict[str, str]:
    return {name: cell.outcome for name, cell in cells.items()}


def test_cells_and_what_they_tell(tier: Any) -> None:
    tier.make(
        {"name": "one", "cases": [case("a", oracles=["v1", "v2"]), case("b", oracles=["v2"])]},
        {"name": "two", "llm": {"draft": {"model": "d"}}},
    )
    cells = tier.run(mode="each")
    assert outcomes(cells) == {
        f"{name}[torch-{setting}]": "passed"
        for name in ("one::a", "one::b", "two::plain")
        for setting in ("all-on", "all-off")
    }
    cell = cells["one::a[torch-all-off]"]
    assert (cell.launcher, cell.case, cell.backend, cell.ran) == ("e2e.one", "a = V1, V2", "torch", "torch")
    assert cell.setting == "all-off"
    assert len(cell.off or ()) == 6
    assert cell.upstream is not None
    # Upstream is asked once whatever the settings, V1 without drafts; the fork under each.
    found = [(kind, name, drafts) for kind, name, _, drafts in asked(tier.content)]
    assert sorted(found) == sorted([
        ("v1", "a", "False"), ("v2", "a", "False"), ("v2", "b", "False"), ("v1", "plain", "False"),
        *2 * [("fork", "a", "False"), ("fork", "b", "False"), ("fork", "plain", "True")],
    ])  # fmt: skip
    (planned,) = results.load([tier.out]).planned
    assert (planned.run.tier, planned.cells, planned.ended) == ("e2e", 6, 6)


def test_upstreams_answers_are_kept(tier: Any) -> None:
    content = tier.make({"name": "one", "cases": [case("a"), case("b")]})
    tier.run()
    asked(content)
    tier.run()
    assert [kind for kind, *_ in asked(content)] == ["fork", "fork"]
    # Another source of the answers, and a file that is none.
    (content.parity / "interpreter.py").write_text("# another\n")
    tier.run()
    assert sorted(kind for kind, *_ in asked(content)) == ["fork", "fork", "v1", "v1"]
    for file in (content.root / "engine" / "e2e").glob("v1-one-a-*.json"):
        file.write_text("{")
    assert set(outcomes(tier.run()).values()) == {"passed"}
    assert sorted(kind for kind, *_ in asked(content)) == ["fork", "fork", "v1"]


def test_what_the_fork_says_differently(tier: Any) -> None:
    tier.make({"name": "one", "cases": [case("a", {"fork": [7]}), case("b")]})
    cells = tier.run()
    assert outcomes(cells) == {"one::a[torch-all-on]": "failed", "one::b[torch-all-on]": "passed"}
    bad = cells["one::a[torch-all-on]"]
    assert (bad.tensor, bad.message) == (
        "v1.call0.request0.tokens.length", "v1.call0.request0.tokens.length: 3, upstream 2",
    )  # fmt: skip
    assert bad.replay is not None
    assert "--tier e2e --switches all-on --backend torch" in bad.replay
    assert "--cell 'e2e/one::a[torch-all-on]'" in bad.replay


@pytest.mark.parametrize(
    ("says", "told"),
    [("die", "the process was killed by signal 9"), ("raise", "ValueError: a step failed"), ("hang", "no answer for")],
)
def test_a_case_that_goes_wrong_costs_that_case(
    tier: Any, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    monkeypatch.setattr(e2eengines, "PATIENCE", {"fork": 2.0, "v1": 60.0, "v2": 60.0})
    content = tier.make({"name": "one", "cases": [case("a"), case("b", {"fork": says}), case("c"), case("d")]})
    cells = tier.run(processes=1)
    bad = "one::b[torch-all-on]"
    assert outcomes(cells) == {
        f"one::{n}[torch-all-on]": "error" if n == "b" else "passed" for n in ("a", "b", "c", "d")
    }
    assert told in (cells[bad].message or "")
    by_name = {name: pid for kind, name, pid, _ in asked(content) if kind == "fork"}
    assert by_name["a"] == by_name["b"] != by_name["c"] == by_name["d"]
    for pid in by_name.values():
        assert not _alive(int(pid))
    # An error runs again on resume, what ended does not.
    tier.run(resume=True)
    assert [name for *_, name, _, _ in asked(content)] == ["b"]
    assert tier.result.resumed == 3


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_engine_that_does_not_start_costs_its_cases(tier: Any) -> None:
    tier.make({"name": "bad", "llm": {"start": "fork"}, "cases": [case("a"), case("b")]}, {"name": "good"})
    cells = tier.run(processes=1)
    assert outcomes(cells) == {
        "bad::a[torch-all-on]": "error", "bad::b[torch-all-on]": "error", "good::plain[torch-all-on]": "passed",
    }  # fmt: skip
    assert cells["bad::b[torch-all-on]"].message == "RuntimeError: does not start"


def test_an_oracle_that_goes_wrong_is_an_error_that_says_so(tier: Any) -> None:
    content = tier.make({"name": "one", "cases": [case("a", {"v1": "die"}), case("b")]})
    cells = tier.run()
    assert outcomes(cells) == {"one::a[torch-all-on]": "error", "one::b[torch-all-on]": "passed"}
    assert (cells["one::a[torch-all-on]"].message or "").startswith(
        "upstream's V1 cannot say: the process was killed by signal 9"
    )
    asked(content)
    tier.run()
    assert [n for k, n, *_ in asked(content) if k == "v1"] == ["a"], "what it could not say is asked again"


PREEMPTED = {"num_preemptions": 2}
RANGES = {"num_preemptions": [1, None]}


@pytest.mark.parametrize(
    ("counters", "outcome", "told"),
    [
        ({"v1": PREEMPTED, "fork": PREEMPTED}, "passed", None),
        ({"fork": PREEMPTED}, "passed", None),
        ({"v1": {"num_preemptions": 0}, "fork": PREEMPTED}, "error", "num_preemptions is 0, expected 1 to any"),
        ({"v1": PREEMPTED, "fork": {"num_preemptions": 0}}, "failed", "num_preemptions is 0, expected 1 to any"),
        ({"v1": PREEMPTED}, "failed", "num_preemptions is 0, expected 1 to any"),
    ],
)
def test_what_a_case_is_about_must_happen(tier: Any, counters: dict[str, Any], outcome: str, told: str | None) -> None:
    tier.make({"name": "one", "cases": [case("a", calls=[call(counters=counters)], ranges=RANGES)]})
    (cell,) = tier.run().values()
    assert (cell.outcome, cell.message) == (outcome, told)


def test_an_option_must_make_a_difference(tier: Any) -> None:
    content = tier.make({"name": "one", "cases": [
        case("nothing"), case("same", unlike="nothing"), case("other", {"v1": [5], "fork": [5]}, unlike="nothing"),
    ]})  # fmt: skip
    cells = tier.run(expression="one::same")
    assert outcomes(cells) == {"one::same[torch-all-on]": "error"}
    assert "compares nothing" in (cells["one::same[torch-all-on]"].message or "")
    assert {n for k, n, *_ in asked(content) if k == "v1"} == {"nothing", "same"}
    assert tier.run(expression="one::other")["one::other[torch-all-on]"].outcome == "passed"


@pytest.mark.parametrize(
    ("llm", "told"),
    [
        ({"backend": "upstream"}, "fork runs kernels of upstream"),
        ({"sites": "reference"}, "with all-on the sites run reference"),
        ({"async_scheduling": True, "ignores": "fork"}, "fork runs with async_scheduling=False"),
    ],
)
def test_what_runs_must_be_what_was_asked_for(tier: Any, llm: dict[str, Any], told: str) -> None:
    tier.make({"name": "one", "llm": llm})
    (cell,) = tier.run().values()
    assert (cell.outcome, cell.message) == ("failed", told)


def test_all_off_must_run_the_reference(tier: Any) -> None:
    tier.make({"name": "one", "llm": {"sites": "launchers"}})
    (cell,) = tier.run(mode="all-off").values()
    assert (cell.outcome, cell.message) == ("failed", "with all-off the sites run launchers")


def test_a_fork_without_views_of_host_memory(tier: Any) -> None:
    """Hidden for the rest of a process: the next scenario has another one."""
    content = tier.make(
        {"name": "hidden", "hide_views": True}, {"name": "too", "hide_views": True}, {"name": "open"},
        {"name": "blind", "llm": {"sees": True}}, {"name": "seen", "hide_views": True, "llm": {"sees": True}},
    )  # fmt: skip
    cells = tier.run(processes=1)
    assert {name.partition(":")[0]: cell.message for name, cell in cells.items()} == {
        "hidden": None, "too": None, "open": None, "blind": "fork has no view of host memory",
        "seen": "fork has a view of host memory",
    }  # fmt: skip
    pids = [pid for kind, _, pid, _ in asked(content) if kind == "fork"]
    assert pids[0] == pids[1] != pids[2] == pids[3] == pids[4]


def test_ranks_are_counted(tier: Any) -> None:
    tier.make({"name": "one", "ranks": 2})
    (cell,) = tier.run().values()
    assert (cell.outcome, cell.message) == ("error", "v1 has 1 ranks, not 2")


def test_what_cannot_run_is_told(tier: Any) -> None:
    content = tier.make({"name": "graphs", "cannot": "a CPU has no graphs"})
    (cell,) = tier.run().values()
    assert (cell.outcome, cell.message) == ("skipped", "a CPU has no graphs")
    assert asked(content) == []


def test_a_cell_alone_and_shards(tier: Any) -> None:
    content = tier.make(*({"name": f"s{i}", "cases": [case("a"), case("b")]} for i in range(4)))
    assert list(tier.run(cells=("e2e/s1::b[torch-all-on]",))) == ["s1::b[torch-all-on]"]
    with pytest.raises(ForkError, match="no such cell"):
        tier.run(cells=("e2e/s1::z[torch-all-on]",))
    found: list[str] = []
    for index in (1, 2, 3):
        found += tier.run(shard=Shard(index, 3))
    assert sorted(found) == sorted(f"s{i}::{c}[torch-all-on]" for i in range(4) for c in "ab")
    asked(content)
    with pytest.raises(ForkError, match="no cell of the tier e2e matches 'nowhere'"):
        tier.run(expression="nowhere")
    with pytest.raises(ForkError, match="no cell of the tier e2e"):
        tier.run(backends=("fused",))


def test_scenarios_that_cannot_be_read(tier: Any) -> None:
    content = tier.make({"name": "one"})
    (content.parity / "e2e" / "scenarios.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ForkError, match="the scenarios of the tier e2e cannot be read") as caught:
        tier.run()
    assert "nothing_of_this_name" in str(caught.value.details)


def test_models_are_made_whole_or_not_at_all(tier: Any) -> None:
    content = tier.make({"name": "one"})
    (content.parity / "e2e" / "no models").touch()
    with pytest.raises(ForkError, match="the models of the tier e2e cannot be made") as caught:
        tier.run()
    assert "no space left" in str(caught.value.details)
    (content.parity / "e2e" / "no models").unlink()
    assert set(outcomes(tier.run()).values()) == {"passed"}


class _Interrupts(Silent):
    """Ctrl-C once an engine of the fork hangs."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self.asked = content.parity / "e2e" / "asked"

    def task(self, label: str, total: int | None) -> Any:
        if label.startswith("running"):
            import threading

            threading.Thread(target=self._interrupt, daemon=True).start()
        return super().task(label, total)

    def _interrupt(self) -> None:
        while not self.asked.exists() or "fork b" not in self.asked.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_keeps_what_ended_and_leaves_no_process(tier: Any) -> None:
    content = tier.make({"name": "one", "cases": [case("a"), case("b", {"fork": "hang"}), case("c")]})
    options = matrixkit.options(tier.out, 1, tiers=("e2e",))
    with pytest.raises(KeyboardInterrupt):
        matrixkit.start(content, options, _Interrupts(content))
    loaded = results.load([tier.out])
    assert [cell.test for cell in loaded.cells] == ["e2e/one::a[torch-all-on]"]
    assert (loaded.planned[0].cells, loaded.planned[0].ended) == (3, 1)
    pids = {int(pid) for _, _, pid, _ in asked(content)}
    assert pids
    assert not any(_alive(pid) for pid in pids)


def test_engines_end_with_a_run_that_is_killed(tier: Any) -> None:
    content = tier.make({"name": "one", "cases": [case("a", {"fork": "hang"})]})
    command = ["matrix", "run", *matrixkit.ON, "--tier", "e2e", "-n", "1", "--results", str(tier.out)]
    child = subprocess.Popen(
        [sys.executable, "-c", matrixkit.SCRIPT, str(content.root), *command, f"--repo={content.root}"]
    )
    file = content.parity / "e2e" / "asked"
    try:
        _until(lambda: file.exists() and "fork a" in file.read_text())
    finally:
        child.kill()
        child.wait()
    (pid,) = (int(pid) for kind, _, pid, _ in asked(content) if kind == "fork")
    _until(lambda: not _alive(pid))


def _until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.1)
