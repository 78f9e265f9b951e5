"""Results of several machines at once: one file, each line below its head; what is lost can go on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matrixkit import CELL, RUN, names

from kunlunfork.errors import ForkError
from kunlunfork.matrix import rayrun, results
from kunlunfork.matrix.gather import Gather
from kunlunfork.matrix.results import Writer


def _lines(path: Path, shard: str, *tests: str, planned: int = 2) -> list[bytes]:
    with Writer(path, append=False) as file:
        run = replace(RUN, shard=shard)
        file.head(run)
        file.tier("ops", planned)
        for test in tests:
            file.cell(replace(CELL, test=test, run=run))
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_lines_that_come_in_turns(out: Path, tmp_path: Path) -> None:
    one, two = (_lines(tmp_path / n, f"{n}/2", f"{n}a", f"{n}b") for n in "12")
    with Writer(out, append=False) as writer:
        gather = Gather(writer, RUN.pin, RUN.series, RUN.overlay)
        for a, b in zip(one, two, strict=True):
            gather.take("1/2", a)
            gather.take("2/2", b)
        assert (gather.planned, gather.ended) == (4, 4)
        assert gather.whole("1/2", 1) and not gather.whole("1/2", 2) and not gather.whole("3/2", 1)
    loaded = results.load([out])
    assert names(loaded.cells) == ["1a", "1b", "2a", "2b"]
    assert {c.test[0] + "/2" == c.run.shard for c in loaded.cells} == {True}
    assert [(p.cells, p.ended) for p in loaded.planned] == [(2, 2), (2, 2)]


def test_a_tier_that_plans_launchers_is_whole_when_all_have_come(out: Path, tmp_path: Path) -> None:
    run = replace(RUN, shard="1/1", tier="upstream")
    with Writer(tmp_path / "1", append=False) as file:
        file.head(run)
        file.tier("upstream", 2, results.LAUNCHERS)
        for launcher, test in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4")):
            file.cell(replace(CELL, run=run, launcher=launcher, test=test))
    *lines, last = (tmp_path / "1").read_bytes().splitlines(keepends=True)
    with Writer(out, append=False) as writer:
        gather = Gather(writer, RUN.pin, RUN.series, RUN.overlay)
        gather.take("1/1", b"".join(lines))
        assert not gather.whole("1/1", 1)
        gather.take("1/1", last)
        assert gather.whole("1/1", 1)


def test_what_a_lost_machine_had_sent_is_kept(out: Path, tmp_path: Path) -> None:
    sent = _lines(tmp_path / "1", "1/1", "a")
    with Writer(out, append=False) as writer:
        gather = Gather(writer, RUN.pin, RUN.series, RUN.overlay)
        gather.take("1/1", b"".join(sent))
        assert not gather.whole("1/1", 1)
        before = gather.before("1/1")
        assert before == b"".join(sent)
        # Another machine goes on: its run plans what was left.
        gather.take("1/1", b"".join(_lines(tmp_path / "2", "1/1", "b", planned=1)))
        assert gather.whole("1/1", 1)
    assert names(results.load([out]).cells) == ["a", "b"]
    file = tmp_path / "before.jsonl"
    file.write_bytes(before)
    assert names(results.load([file]).cells) == ["a"]


@pytest.mark.parametrize("name", ["pin", "series", "overlay"])
def test_another_fork_is_refused(name: str, out: Path, tmp_path: Path) -> None:
    head = json.loads(_lines(tmp_path / "1", "1/1")[0])
    with Writer(out, append=False) as writer:
        gather = Gather(writer, RUN.pin, RUN.series, RUN.overlay)
        with pytest.raises(ForkError, match="shard 1/1 has another fork") as e:
            gather.take("1/1", json.dumps({**head, name: "ff"}).encode() + b"\n")
    assert name in (e.value.found or "")
    assert out.read_bytes() == b""


@pytest.mark.parametrize("data", [b"x\n", b"[]\n", b"{}\n", b"\xff\n"])
def test_what_is_no_result_is_refused(data: bytes, out: Path) -> None:
    with Writer(out, append=False) as writer, pytest.raises(ForkError, match="sent what is no result"):
        Gather(writer, "p", "s", "o").take("1/1", data)


def test_what_a_task_asks_for() -> None:
    assert rayrun.demand("cpu", 4) == {"num_cpus": 4}
    assert rayrun.demand("cuda", 4) == {"num_cpus": 1, "num_gpus": 1}
    assert rayrun.demand("xpu", 4) == {"num_cpus": 1, "resources": {"XPU": 1}}


def test_how_many_tasks_a_cluster_has_place_for() -> None:
    nodes = [{"Alive": True, "Resources": r} for r in ({"CPU": 4.0}, {"CPU": 9.0, "GPU": 2.0}, {"XPU": 8.0})]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0}})
    # Every task fits on every node that has the device at all.
    assert rayrun.slots(nodes, "cpu", None) == (3, 4)
    assert rayrun.slots(nodes, "cpu", 2) == (6, 2)
    assert rayrun.slots(nodes, "cuda", None) == (2, 1)
    assert rayrun.slots(nodes, "xpu", 3) == (8, 3)
    for device, processes, few in (("cpu", 10, nodes), ("cuda", None, nodes[:1]), ("cpu", None, [])):
        with pytest.raises(ForkError, match="no node of the Ray cluster"):
            rayrun.slots(few, device, processes)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ForkError, match="Ray is not installed") as e:
        rayrun._ray(None)
    assert e.value.fix == "pip install 'kunlunfork[ray]'"
