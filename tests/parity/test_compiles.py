# SPDX-License-Identifier: Apache-2.0
"""The fork's kernels compile for a GPU, with the types that they are launched with."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import harness
import pytest
import test_head
import test_launches
import torch

# Signatures of a kernel: enough for each type and for both sides of each constant.
MOST = 4
TYPES = {
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
}
Signature = tuple[str, str, dict[str, str], dict[str, Any], int]


def _signature(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """As Triton sees a launch: pointers by what they point at, None and 1 as constants."""
    parameters = inspect.signature(kernel).parameters
    given = dict(zip(parameters, args, strict=False)) | {k: v for k, v in kwargs.items() if k in parameters}
    types, constants = {}, {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            types[name] = TYPES[value.dtype]
        elif name.isupper() or value is None or value == 1:
            constants[name] = value
        else:
            types[name] = "i32"
    return kernel.__module__, kernel.__name__, types, constants, kwargs.get("num_warps", 4)


@contextmanager
def _recorded() -> Iterator[list[Signature]]:
    from triton.runtime.interpreter import GridExecutor

    seen: list[Signature] = []
    whole = GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ".kernels." in self.fn.__module__:
            seen.append(_signature(self.fn, args, kwargs))
        return whole(self, *args, **kwargs)

    with mock.patch.object(GridExecutor, "__call__", call):
        yield seen


def _all() -> list[Signature]:
    with _recorded() as seen:
        for site in test_launches.SITES:
            for case in harness.all_cases(site):
                args, kwargs = case.make()
                if case.raises is None:
                    harness.implementation(site.launcher, "fused")(*args, **kwargs)
        for seed in range(4):
            test_head._run(test_head._step(seed), "fused", True)
    count: Counter[str] = Counter()
    few = []
    for line in dict.fromkeys(map(json.dumps, seen)):
        signature = json.loads(line)
        count[signature[1]] += 1
        if count[signature[1]] <= MOST:
            few.append(signature)
    return few


def _compile(signatures: Iterable[Signature], folder: Path, where: tuple[Path, ...] = ()) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = [*map(str, where), *sys.path]
    env |= {"PYTHONPATH": os.pathsep.join(path), "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("compiling.py")
    given = "".join(json.dumps(s) + "\n" for s in signatures)
    done = subprocess.run([sys.executable, script], input=given, env=env, capture_output=True, text=True, timeout=900)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0 and [n for n, _ in said] == list(range(len(said))), done.stderr[-2000:]
    return [text for _, text in said]


@pytest.fixture(scope="module")
def signatures() -> list[Signature]:
    return _all()


def test_every_kernel_compiles(signatures: list[Signature], tmp_path: Path) -> None:
    said = _compile(signatures, tmp_path)
    assert len(said) == len(signatures)
    assert [(s[1], s[2], text) for s, text in zip(signatures, said, strict=True) if text] == []


def test_every_kernel_was_seen(signatures: list[Signature]) -> None:
    """Those with a leading underscore and the two of `maxima` are launched; the others are called by these."""
    import importlib
    import pkgutil

    package = importlib.import_module(f"{harness.kunlun_package()}.kernels")
    kernels = set()
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        kernels |= {
            name for name, value in vars(module).items() if type(value).__name__ == "InterpretedFunction"
            and value.fn.__module__ == module.__name__
        }  # fmt: skip
    called = {"_slot", "first_maximum"} | {name for name in kernels if name.startswith(("fill_", "pad_"))}
    assert kernels - called == {s[1] for s in signatures}


def test_what_only_the_interpreter_takes_is_told(tmp_path: Path) -> None:
    text = (
        "from vllm.triton_utils import tl, triton\n"
        "@triton.jit\n"
        "def both(x, n):\n"
        "    if n > 1:\n"
        "        place = tl.arange(0, 4)\n"
        "    else:\n"
        "        place = tl.arange(0, 8)\n"
        "    tl.store(x + tl.program_id(0), 1)\n"
    )
    (tmp_path / "refused_kernel.py").write_text(text)
    signature: Signature = ("refused_kernel", "both", {"x": "*i32", "n": "i32"}, {}, 4)
    (said,) = _compile([signature], tmp_path / "cache", (tmp_path,))
    assert "Mismatched type for place" in said
