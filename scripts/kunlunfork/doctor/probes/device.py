"""torch, Triton and the device, as the interpreter that runs this has them: `device.py OUT JSON`.

One JSON object a line; a line is written before each step that may crash or hang.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from typing import Any

# Triton looks it up among the globals of the kernel.
tl: Any = None


# Without annotations, which Triton's compiler takes for a part of the kernel: 3.6 stops at `Any`.
def increment(x_ptr):  # type: ignore[no-untyped-def]
    """A trivial kernel."""
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def first_line(error: BaseException) -> str:
    # Compilers append their whole input.
    return ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))


def torch_facts(torch: Any) -> dict[str, Any]:
    kind = "cpu"
    for name in ("cuda", "xpu"):
        part = getattr(torch, name, None)
        if part is not None and part.is_available():
            kind = name
            break
    device: dict[str, Any] = {"kind": kind}
    if kind != "cpu":
        device["name"] = getattr(torch, kind).get_device_name(0)
        try:
            torch.empty(1).pin_memory()
            device["pinned"] = None
        except Exception as e:  # noqa: BLE001  (a driver may raise anything)
            device["pinned"] = first_line(e)
    return device


def triton_facts(torch: Any) -> dict[str, Any]:
    """Whether vLLM would say that it has Triton, by the rules of `vllm/triton_utils/importing.py`."""
    if importlib.util.find_spec("triton") is None:
        return {"installed": False, "has": False, "why": "Triton is not installed"}
    facts: dict[str, Any] = {"installed": True}
    try:
        facts["version"] = importlib.import_module("triton").__version__
        backends = importlib.import_module("triton.backends").backends
        active = [name for name, x in backends.items() if x.driver and x.driver.is_active()]
        facts.update(backends=sorted(backends), active=sorted(active))
        variable = "HIP_VISIBLE_DEVICES" if getattr(torch.version, "hip", None) else "CUDA_VISIBLE_DEVICES"
        hidden = os.environ.get(variable, "x").strip() == ""
        has, why = len(active) == 1, f"{len(active)} active drivers"
        if hidden and not active:
            has, why = True, f"no active driver, but {variable} is empty"
        if "cpu" in importlib.metadata.version("vllm"):
            has = "cpu" in backends
            why = "vLLM is built for the CPU, and Triton " + ("has" if has else "has no") + " backend for it"
        return {**facts, "has": has, "why": why}
    except Exception as e:  # noqa: BLE001  (as upstream: whatever happens, it then has no Triton)
        return {**facts, "has": False, "why": first_line(e)}


def launch(torch: Any, kind: str) -> dict[str, Any]:
    global tl
    try:
        triton = importlib.import_module("triton")
        tl = importlib.import_module("triton.language")
        x = torch.full((1,), 41, dtype=torch.int32, device=kind)
        triton.jit(increment)[(1,)](x)
        result = x.item()
    except Exception as e:  # noqa: BLE001  (a driver may raise anything)
        return {"works": False, "why": first_line(e)}
    if result != 42:
        return {"works": False, "why": f"it computed {result}, not 42"}
    return {"works": True, "why": f"on {kind}"}


def main(out: str) -> None:
    with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123

        def tell(**facts: Any) -> None:
            file.write(json.dumps(facts) + "\n")
            file.flush()

        tell(python=platform.python_version(), doing="importing torch")
        torch = None
        if importlib.util.find_spec("torch") is None:
            tell(torch={"missing": True})
        else:
            try:
                torch = importlib.import_module("torch")
                tell(torch={"version": str(torch.__version__)})
            except Exception as e:  # noqa: BLE001  (a broken library may raise anything)
                tell(torch={"error": first_line(e)})
        if torch is not None:
            tell(doing="looking for a device")
            try:
                device = torch_facts(torch)
            except Exception as e:  # noqa: BLE001
                device = {"kind": "cpu", "error": first_line(e)}
            tell(device=device, doing="importing Triton")
            triton = triton_facts(torch)
            tell(triton=triton)
            if triton["installed"]:
                tell(doing="launching a Triton kernel")
                tell(launch=launch(torch, device["kind"]))
        elif importlib.util.find_spec("triton") is None:
            tell(triton={"installed": False, "has": False, "why": "Triton is not installed"})
        tell(doing=None, done=True)


if __name__ == "__main__":
    main(sys.argv[1])
