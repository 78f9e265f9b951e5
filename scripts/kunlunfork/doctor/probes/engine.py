"""What vLLM itself says: `engine.py OUT JSON`, with {"model": DIR or null, "speculative": {...} or null}.

Imports vLLM, and makes a VllmConfig where a model is named. No weights are read and no engine is started.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def first_lines(error: BaseException) -> str:
    if hasattr(error, "errors") and hasattr(error, "error_count"):  # pydantic's, which appends the whole input
        return "; ".join(str(e.get("msg")) for e in error.errors())[:600]
    return f"{type(error).__name__}: " + " ".join(str(error).split())[:600]


def view(torch: Any) -> str | None:
    """Whether the device can see memory of the host, by doing it; None: it can."""
    try:
        utils = importlib.import_module("vllm.utils.torch_utils")
        function = getattr(utils, "get_accelerator_view_from_cpu_tensor", None)
        if function is None:
            return "this vLLM has no get_accelerator_view_from_cpu_tensor"
        host = torch.zeros(4, dtype=torch.int32, pin_memory=True)
        seen = function(host)
        host.copy_(torch.arange(4, dtype=torch.int32))
        # On the device, and not through the memory of the view.
        found = (seen + 1).tolist()
        if found != [1, 2, 3, 4]:
            return f"it holds {found}, not [1, 2, 3, 4]"
    except Exception as e:  # noqa: BLE001  (a driver may raise anything)
        return first_lines(e)
    return None


def main(out: str, given: dict[str, Any]) -> None:
    # A model is a folder: nothing is looked for elsewhere.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123

        def tell(**facts: Any) -> None:
            file.write(json.dumps(facts) + "\n")
            file.flush()

        tell(doing="importing vLLM")
        vllm = importlib.import_module("vllm")
        tell(vllm={"version": str(getattr(vllm, "__version__", "")), "file": vllm.__file__})
        platform = importlib.import_module("vllm.platforms").current_platform
        tell(
            platform={
                "name": type(platform).__name__,
                "module": type(platform).__module__,
                "device": str(getattr(platform, "device_type", "")),
                "cpu": bool(platform.is_cpu()),
            }
        )
        tell(has_triton=bool(importlib.import_module("vllm.triton_utils").HAS_TRITON))
        try:
            uva = bool(importlib.import_module("vllm.utils.platform_utils").is_uva_available())
            tell(uva={"available": uva, "view": None if platform.is_cpu() else view(importlib.import_module("torch"))})
        except Exception as e:  # noqa: BLE001  (a driver may raise anything)
            tell(uva={"available": False, "view": first_lines(e)})
        if given["model"] is not None:
            tell(doing="making the VllmConfig")
            tell(config=configure(given))
        tell(doing=None, done=True)


def configure(given: dict[str, Any]) -> dict[str, Any]:
    arguments = importlib.import_module("vllm.engine.arg_utils")
    try:
        args = arguments.EngineArgs(model=given["model"], speculative_config=given["speculative"])
        config = args.create_engine_config()
    except Exception as e:  # noqa: BLE001  (a configuration that is refused may be so in any way)
        return {"error": first_lines(e)}
    return {"v2": bool(config.use_v2_model_runner)}


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
