# SPDX-License-Identifier: Apache-2.0
"""The oracle's machinery: upstream's Triton kernels run by Triton's own interpreter on the CPU.

Three things stand between stock vLLM on a CPU and that:

- Triton must be importable and must be told to interpret (`TRITON_INTERPRET=1`) before it is imported;
- upstream decides that Triton is absent, since no Triton driver is active here, and hands placeholders to
  every module that asks later; the decision is overturned right after it was made, before any module asks;
- the interpreter knows no device library, so `log1p`, `isnan` and friends are NumPy functions here.

Of bfloat16 it is no oracle: it cuts where hardware rounds, and compares bits. float16 stands for all logits of 16 bits.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_prepared = False


class OracleUnavailable(RuntimeError):
    """The process cannot run upstream's kernels; the message says what is missing."""


def prepare() -> None:
    """Make upstream's kernels run in this process. Call before importing `vllm.v1`; repeating is free.

    Raises OracleUnavailable without Triton, or where a module has already taken upstream's placeholder.
    """
    global _prepared
    if _prepared:
        return
    if importlib.util.find_spec("triton") is None:
        raise OracleUnavailable("Triton is not importable: put a Triton 3.6.0 installation on PYTHONPATH")
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise OracleUnavailable("Triton was imported before TRITON_INTERPRET=1 was set")
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    _teach_device_library()
    _claim_triton()
    # Upstream's own stand-ins for streams, events, pinned memory and UVA on a CPU.
    importlib.import_module("vllm.v1.worker.cpu.shm")
    _prepared = True


def _claim_triton() -> None:
    import triton
    import triton.language as tl
    import triton.language.extra.libdevice as libdevice

    upstream = importlib.import_module("vllm.triton_utils")
    importing = importlib.import_module("vllm.triton_utils.importing")
    stale = (getattr(upstream, "triton", None), getattr(upstream, "tl", None))
    if not upstream.HAS_TRITON:
        for name, module in list(sys.modules.items()):
            if module is upstream or not name.startswith("vllm."):
                continue
            held = vars(module).values()
            if any(value is placeholder for value in held for placeholder in stale):
                raise OracleUnavailable(f"{name} already holds upstream's placeholder for Triton")
    for module in (upstream, importing):
        module.HAS_TRITON = True  # type: ignore[attr-defined]
    upstream.triton, upstream.tl, upstream.tldevice = triton, tl, libdevice  # type: ignore[attr-defined]


def _teach_device_library() -> None:
    import numpy as np
    import triton.language as tl
    import triton.language.extra.libdevice as libdevice
    from triton.runtime.interpreter import TensorHandle

    def elementwise(function: Any, to: Any = None) -> Any:
        def call(x: Any, *unused: Any, **unused_too: Any) -> Any:
            with np.errstate(all="ignore"):
                data = function(x.handle.data)
            scalar = to or x.handle.dtype.scalar
            shaped = tl.block_type(scalar, list(data.shape)) if data.ndim and x.type.is_block() else scalar
            return tl.core.tensor(TensorHandle(data, scalar), shaped)

        return call

    modules: list[ModuleType] = [libdevice]
    # Upstream's NaN count takes the device library from Inductor's helpers.
    helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
    if isinstance(getattr(helpers, "libdevice", None), ModuleType):
        modules.append(helpers.libdevice)
    for module in modules:
        module.log1p = elementwise(np.log1p)  # type: ignore[attr-defined]
        module.isnan = elementwise(np.isnan, tl.int1)  # type: ignore[attr-defined]
