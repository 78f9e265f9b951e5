"""The table of symbols: what the fork does with each, and what mainline did since."""

from __future__ import annotations

import diffkit
import pytest
from diffkit import Differ
from support import REPO

from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.diff import sites, standins
from kunlunfork.diff.report import Parts
from kunlunfork.diff.sides import Request
from kunlunfork.diff.table import Row
from kunlunfork.fork import load
from kunlunfork.store import Base, Store

PINS = Content(REPO, clone=True).versions()
BATCH = b"vllm/v1/worker/gpu/input_batch.py"
RUNNER = b"vllm/v1/worker/gpu/model_runner.py"
SOURCE = b"""
import torch
from vllm.triton_utils import triton


@triton.jit
def _kernel(x):
    pass


@triton.jit
def _shared_kernel(x):
    pass


def launch(x, y=1):
    _kernel[(1,)](x)
    _shared_kernel[(1,)](x)


def other(x):
    _shared_kernel[(1,)](x)


class Buffer:
    def copy(self, n: int) -> int:
        return n

    def kept(self):
        return 1
"""
SITES = b"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    ids: tuple
    module: str
    qualname: str
    switch: str
    impl: str
    variants: tuple = ()
    when_greedy: str | None = None


SITES = (Site((0,), "vllm.v1.worker.gpu.input_batch", "launch", "KUNLUN_X", "batch", (("KUNLUN_Y", "launch_slow"),)),)
"""
STAND_INS = b"""
from vllm.v1.worker.gpu import input_batch, model_runner

from . import mixin


class Mine(mixin.Mixin, model_runner.Runner):
    pass


def made(base):
    return type("Made", (mixin.Mixin, base), {})


def again():
    from vllm.v1.worker.gpu.model_runner import CPURunner

    return made(CPURunner)


class OtherBuffer:
    pass


def copy(self, n):
    return 0


_TABLE = {("Buffer", "copy"): copy}


def install():
    input_batch.Buffer = OtherBuffer
    for (owner, name), ours in _TABLE.items():
        setattr(getattr(input_batch, owner), name, ours)
"""
MODEL = b"""
class Runner:
    def run(self):
        return 1

    def stay(self):
        return 2


class CPURunner(Runner):
    def run(self):
        return 3
"""


def rows(report: object) -> dict[str, Row]:
    found = report.symbols  # type: ignore[attr-defined]
    assert found is not None
    # A site and what implements it have the same name.
    return {row.name: row for row in sorted(found, key=lambda row: "/kunlun/" not in row.path)}


@pytest.fixture
def small(differ: Differ) -> Differ:
    world = differ.world
    world.release("1.0", {BATCH: SOURCE, RUNNER: MODEL})
    world.patch("edit", {BATCH: SOURCE.replace(b"def other(x):\n", b"def other(x, z=None):\n")})
    differ.ship("sites.py", SITES)
    differ.ship("launchers/batch.py", b"def launch(x, y=1):\n    pass\n\n\ndef launch_slow(x, y=1):\n    pass\n")
    differ.ship("reference/batch.py", b"def launch(x, y=1):\n    pass\n")
    differ.ship(
        "mixin.py",
        b"class Mixin:\n    def run(self):\n        return super().run()\n\n    def own(self):\n        pass\n",
    )
    differ.ship("stand.py", STAND_INS)
    return differ


def test_every_state(small: Differ) -> None:
    found = rows(small.report("all", symbols=True))
    states = {name: row.state for name, row in found.items() if row.path in (BATCH.decode(), RUNNER.decode())}
    assert states == {
        "_kernel": "bypassed", "_shared_kernel": "same", "launch": "replaced", "other": "patched",
        "Buffer": "shadowed", "Buffer.copy": "shadowed", "Buffer.kept": "same",
        "Runner": "subclassed", "Runner.run": "shadowed", "Runner.stay": "same",
        "CPURunner": "subclassed", "CPURunner.run": "shadowed",
    }  # fmt: skip
    assert found["Mixin.own"].state == "fork only"
    folder = "vllm/v1/worker/gpu/kunlun/"
    assert [str(each) for each in found["launch"].by] == [
        f"{folder}launchers/batch.py::launch (backend torch, switch KUNLUN_X)",
        f"{folder}launchers/batch.py::launch_slow (backend torch, switch KUNLUN_X, while KUNLUN_Y is off)",
        f"{folder}reference/batch.py::launch (backend reference, KUNLUN_X is off and no Triton launches)",
    ]
    assert [each.by for each in found["Runner"].by] == [f"{folder}stand.py::Mine"]
    assert [each.by for each in found["Runner.run"].by] == [f"{folder}mixin.py::Mixin.run"]
    assert [each.by for each in found["CPURunner"].by] == [f"{folder}stand.py::made"]
    assert [each.by for each in found["Buffer"].by] == [f"{folder}stand.py::OtherBuffer"]
    assert [each.by for each in found["Buffer.copy"].by] == [f"{folder}stand.py::copy"]
    assert found["other"].fork == ("+ z=None",)


def test_patched_names_the_patch_that_touches(small: Differ) -> None:
    raw = (small.world.patches / "edit.patch").read_bytes()
    (small.world.patches / "edit.patch").write_bytes(
        raw.replace(b"Remove-When: never\n", b"Remove-When: never\nTouches: vllm/v1/worker/gpu/input_batch.py::other\n")
    )
    assert rows(small.report("input_prep", symbols=True))["other"].patches == ("edit.patch",)


def test_drift_names_the_release_and_spells_the_signature_out(small: Differ) -> None:
    """1.1 changes a body, 1.2 a signature, takes one away and adds one; formatting and comments are no drift."""
    first = SOURCE.replace(b"        return 1\n", b"        return 2\n")
    second = (
        first.replace(b"def launch(x, y=1):", b"def launch(x: int, *, y=2) -> None:")
        .replace(b"    _kernel[(1,)](x)\n", b"")
        .replace(b"@triton.jit\ndef _kernel(x):\n    pass\n", b"def fresh():\n    pass\n")
        .replace(b"def other(x):", b"def other(\n    x,  # a comment\n):")
    )
    small.world.release("1.1", {BATCH: first, RUNNER: MODEL})
    small.world.release("1.2", {BATCH: second, RUNNER: MODEL})
    found = rows(small.report("input_prep", symbols=True, against="1.2"))
    assert str(found["Buffer.kept"].drift) == "body in 1.1"
    launch = found["launch"].drift
    assert launch is not None and (launch.kind, launch.versions) == ("signature", ("1.2",))
    assert launch.signature == (
        "x: int, was not annotated", "y is keyword only, not positional or keyword", "y defaults to 2, not 1",
        "returns None, not anything",
    )  # fmt: skip
    assert str(found["_kernel"].drift) == "gone in 1.2"
    assert (found["fresh"].state, str(found["fresh"].drift)) == ("upstream only", "new in 1.2")
    assert found["other"].drift is None
    assert found["Buffer.copy"].drift is None
    shown = small.text("input_prep", symbols=True, against="1.2").decode()
    assert "mainline: gone in 1.2" in shown
    assert not found["_kernel"].orphaned, "nothing stands in for a kernel"
    assert "Buffer.copy" in shown, "the fork does something with it"
    assert "11 symbols: " in shown


def test_a_site_that_mainline_has_no_more_is_told(small: Differ) -> None:
    small.world.release("1.1", {BATCH: SOURCE.replace(b"def launch(", b"def launched("), RUNNER: MODEL})
    small.world.release("1.2", {BATCH: SOURCE.replace(b"def launch(", b"def started("), RUNNER: MODEL})
    found = rows(small.report("input_prep", symbols=True, against="1.2"))
    assert [name for name, row in found.items() if row.orphaned] == ["launch"]
    assert found["launch"].as_json()["orphaned"] is True
    assert "droppable, or renamed" in small.text("input_prep", symbols=True, against="1.2").decode()
    assert b"gone upstream" in small.text("input_prep", form="html", symbols=True, against="1.2")
    shown = small.text("input_prep", form="md", symbols=True, against="1.2").decode()
    assert "| gone upstream | `vllm/v1/worker/gpu/input_batch.py::launch` | 1.1 |" in shown


def test_a_renamed_file_is_followed(small: Differ) -> None:
    new = b"vllm/v1/worker/gpu/model_states/batch.py"
    small.world.release("1.1", {new: SOURCE.replace(b"return 1\n", b"return 5\n"), RUNNER: MODEL})
    found = rows(small.report("input_prep", symbols=True, against="1.1"))
    assert str(found["launch"].drift) == f"moved to {new.decode()}"
    assert str(found["Buffer.kept"].drift) == f"body to {new.decode()} in 1.1"
    assert not any(row.path == new.decode() for row in found.values())


@pytest.mark.parametrize("pin", PINS)
def test_every_site_of_the_real_fork_is_a_replaced_launcher(
    pin: str, bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request(("all",), version=pin), Parts(symbols=True))
    assert report.symbols is not None
    found = {(row.path, row.name): row for row in report.symbols}
    for site in sites.load(load(content, pin)):
        row = found[site.path, site.qualname]
        assert row.state == "replaced", site
        assert {each.backend for each in row.by} >= {"torch", "reference"} or site.name == "batch_memcpy", site
        for each in row.by:
            path, _, name = each.by.partition("::")
            assert (path, name) in found and found[path, name].state == "fork only"
    for each in standins.find(load(content, pin)):
        row = found.get((each.path, each.name))
        # A mixin has methods of its own; and what a class inherits is a row of its base.
        if row is not None and row.state not in ("upstream only", "fork only"):
            assert each.kind in row.states and each in row.by, each


def test_what_the_fork_of_0_25_1_does(
    bases: dict[str, Base], content: Content, store: Store, user_cache: Cache
) -> None:
    report = diffkit.report(content, store, user_cache, Request(("all",), version="0.25.1"), Parts(symbols=True))
    found = {(row.path, row.name): row for row in report.symbols or ()}
    runner = "vllm/v1/worker/gpu/model_runner.py"
    assert found[runner, "GPUModelRunner"].state == "subclassed"
    assert found[runner, "GPUModelRunner.sample"].state == "shadowed"
    assert found["vllm/v1/worker/gpu/buffer_utils.py", "UvaBackedTensor.copy_to_uva"].state == "shadowed"
    assert found["vllm/v1/worker/gpu_worker.py", "Worker.init_device"].patches == ("gpu-worker-runner.patch",)
    assert found["vllm/config/vllm.py", ""].patches == ("config-triton-gate.patch",)
