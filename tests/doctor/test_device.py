"""torch, Triton and the device: packages that work, lie, fail, crash and hang."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kunlunfork.doctor import child, device
from kunlunfork.doctor.child import Answer

TORCH = """
__version__ = "{version}"
int32 = "int32"
class version: hip = None
class _Tensor:
    def __init__(self, value=0): self.value = value
    def item(self): return self.value
    def pin_memory(self):
        {pin}
        return self
class cuda:
    is_available = staticmethod(lambda: {cuda})
    get_device_name = staticmethod(lambda i: "Fake P800")
def full(shape, value, dtype, device): return _Tensor(value)
def empty(n): return _Tensor()
"""
TRITON = """
import os, signal, time
__version__ = "9.9"
class _Kernel:
    def __init__(self, fn): self.fn = fn
    def __getitem__(self, grid): return self.launch
    def launch(self, x):
        {launch}
jit = _Kernel
"""
WORKS = "x.value = 42"
BACKENDS = """
class _Driver:
    def is_active(self): return {active}
class _Backend: driver = _Driver()
backends = {{{names}}}
"""


@pytest.fixture
def machine(packages, this_python: Path):
    """Ask a machine with such packages."""

    def ask(
        *, torch: str | None = TORCH, cuda: bool = True, pin: str = "pass", launch: str | None = WORKS,
        active: str = "True", names: str = "'fake': _Backend", version: str = "2.11.0", limit: float = 30.0,
    ) -> Answer:  # fmt: skip
        if torch is not None:
            packages("torch.py", torch.format(version=version, cuda=cuda, pin=pin) if torch == TORCH else torch)
        if launch is not None:
            packages("triton/__init__.py", TRITON.format(launch=launch))
            packages("triton/language.py", "")
            packages("triton/backends.py", BACKENDS.format(active=active, names=names))
        packages("vllm-0.25.1.dist-info/METADATA", "Name: vllm\nVersion: 0.25.1\n")
        return child.ask(this_python, "device", {}, tree=None, limit=limit)

    return ask


@pytest.mark.parametrize(
    ("version", "pin", "state"),
    [("2.11.0", "2.11.0", "ok"), ("2.11.0+cpu", "2.11.0", "ok"), ("2.5.1", "2.11.0", "note"), ("2.5.1", None, "ok")],
)
def test_torch(machine, this_python: Path, version: str, pin: str | None, state: str) -> None:
    found = device.check_torch(machine(version=version), pin, this_python, True)
    assert found.state == state
    assert version in found.found


@pytest.mark.parametrize(
    ("torch", "state", "text"),
    [
        (None, "bad", "not in "),
        ("raise ImportError('libxpu.so: not found')", "bad", "libxpu.so"),
        ("1 / 0", "bad", "ZeroDivisionError"),
        ("import os; os.abort()", "bad", "SIGABRT"),
        ("import time; time.sleep(60)", "bad", "no end within"),
    ],
)
def test_a_torch_that_does_not_load(machine, this_python: Path, torch: str | None, state: str, text: str) -> None:
    answer = machine(torch=torch, launch=None, limit=3.0)
    found = device.check_torch(answer, "2.11.0", this_python, True)
    assert (found.state, text in found.found) == (state, True)
    assert "-m pip install torch==2.11.0" in (found.fix or "")
    assert device.check_launch(answer, "auto", None, None) is None


@pytest.mark.parametrize(
    ("arguments", "has", "why"),
    [
        ({}, True, "1 active drivers"),
        ({"active": "False"}, False, "0 active drivers"),
        ({"names": "'a': _Backend, 'b': _Backend"}, False, "2 active drivers"),
        ({"names": ""}, False, "0 active drivers"),
        ({"active": "1 / 0"}, False, "ZeroDivisionError"),
        ({"launch": None}, False, "Triton is not installed"),
    ],
)
def test_triton_as_vllm_would_see_it(machine, arguments, has: bool, why: str, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = device.check_triton(machine(**arguments), None, "auto", True)
    assert found is not None
    assert f"HAS_TRITON={has}" in found.found
    assert why in found.found


def test_hidden_devices(machine, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " ")
    assert machine(active="False").get("triton")["has"] is True


@pytest.mark.parametrize("kernels", ["auto", "torch", "upstream"])
@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (WORKS, "runs"),
        ("raise RuntimeError('Triton Error [CUDA]: NOT_SUPPORTED\\nand more')", "NOT_SUPPORTED"),
        ("x.value = 43", "computed 43"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("time.sleep(60)", "no end within"),
    ],
)
def test_launch(machine, a_lock, tmp_path: Path, launch: str, text: str, forked: bool, kernels: str) -> None:
    lock = a_lock if forked else None
    answer = machine(launch=launch, limit=3.0)
    found = device.check_launch(answer, kernels, lock, tmp_path)
    assert found is not None
    assert text in found.found
    assert "more" not in found.found
    crash = text in ("SIGSEGV", "no end within")
    if text == "runs":
        expected = "ok"
    elif not forked:
        expected = "note" if crash and kernels == "torch" else "bad"
    else:
        # Only under `upstream` are kernels launched that are known not to; under `auto` the runner would try itself.
        expected = "bad" if kernels == "upstream" or (crash and kernels == "auto") else "note"
    assert found.state == expected, found
    assert (found.fix is not None) == (found.state == "bad")


@pytest.fixture(params=[True, False])
def root(request, tmp_path: Path) -> Path:
    """A tree with and without the fork's way to do without views."""
    root = tmp_path / ("fork" if request.param else "upstream")
    file = root / "vllm/v1/worker/gpu/kunlun/uva.py"
    if request.param:
        file.parent.mkdir(parents=True)
        file.touch()
    return root


@pytest.mark.parametrize(
    ("arguments", "state", "text"),
    [
        ({}, "note", "memory can be pinned"),
        ({"pin": "raise RuntimeError('no')"}, "bad", "cannot be pinned"),
        ({"cuda": False}, "note", "no device"),
    ],
)
def test_uva_by_torch(machine, root: Path, arguments, state: str, text: str) -> None:
    answer = machine(**arguments)
    found = device.check_uva(answer, None, root)
    assert found is not None
    assert (found.state, text in found.found) == (state if root.name == "upstream" else "note", True)
    assert (found.fix is not None) == (found.state == "bad")
    seen = device.check_device(answer)
    assert seen is not None
    assert seen.state == ("note" if "cuda" in arguments else "ok")


@pytest.mark.parametrize(
    ("uva", "cpu", "state"),
    [
        ({"available": True, "view": None}, False, "ok"),
        ({"available": True, "view": "ValueError: not supported"}, False, "bad"),
        ({"available": False, "view": "RuntimeError: no"}, False, "bad"),
        ({"available": False, "view": None}, False, "bad"),
        ({"available": True, "view": None}, True, "ok"),
    ],
)
def test_uva_by_vllm(machine, root: Path, uva, cpu: bool, state: str) -> None:
    found = device.check_uva(machine(), Answer({"uva": uva, "platform": {"cpu": cpu}}), root)
    assert found is not None
    assert found.state == (state if state == "ok" or root.name == "upstream" else "note")


def test_vllm_may_contradict_the_rules(machine) -> None:
    found = device.check_triton(machine(), Answer({"has_triton": False}), "auto", True)
    assert found is not None
    assert "vLLM says HAS_TRITON=False; by its rules it would be True" in found.found


def test_the_kernel_is_one_that_triton_compiles() -> None:
    """Seen on an H200 with Triton 3.6.0: an annotation other than Triton's own is a CompilationError."""
    spec = importlib.util.spec_from_file_location("device", Path(device.__file__).parent / "probes" / "device.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.increment.__annotations__ == {}
