# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels of the fork for a GPU, without one: `python compiling.py < SIGNATURES`, a process of its own.

The interpreter takes what the compiler refuses: a name with one type here and another there, for instance. Each line
that comes in is a JSON list: module and name of a kernel, parameter -> type, parameter -> constant, warps. A line goes
out for each, a JSON list of its number and what the compiler said ('' where it compiled).
"""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType

# NVIDIA's compute capability 9.0; another device has another compiler behind the same front.
ARCHITECTURE = 90


def prepare() -> None:
    """Triton for the kernels, whatever vLLM makes of a machine without a driver."""
    import triton
    import triton.language as tl
    import triton.language.extra.libdevice as libdevice

    held = ModuleType("vllm.triton_utils")
    held.triton, held.tl, held.tldevice, held.HAS_TRITON = triton, tl, libdevice, True  # type: ignore[attr-defined]
    sys.modules["vllm.triton_utils"] = held


def main() -> None:
    prepare()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for number, line in enumerate(sys.stdin):
        module, name, types, constants, warps = json.loads(line)
        kernel = getattr(importlib.import_module(module), name)
        signature = {p: types.get(p, "constexpr") for p in kernel.arg_names}
        given = {(kernel.arg_names.index(p),): value for p, value in constants.items()}
        said = ""
        try:
            source = ASTSource(kernel, signature, constexprs=given)
            triton.compile(source, target=GPUTarget("cuda", ARCHITECTURE, 32), options={"num_warps": warps})
        except Exception as e:  # noqa: BLE001 - a compiler may raise anything
            said = f"{type(e).__name__}: {e}"[-1500:]
        print(json.dumps([number, said]), flush=True)


if __name__ == "__main__":
    main()
