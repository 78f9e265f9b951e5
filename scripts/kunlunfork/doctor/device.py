"""torch, Triton and UVA, as a child process in the interpreter found them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from kunlunfork import transaction
from kunlunfork.doctor.check import Check
from kunlunfork.doctor.child import Answer
from kunlunfork.doctor.environment import KERNELS
from kunlunfork.lock import Lock

_STAND_IN = "vllm/v1/worker/gpu/kunlun/uva.py"


def check_torch(answer: Answer, pin_torch: str | None, python: Path, wanted: bool) -> Check:
    """Its version against the one that the release was built for; `wanted`: there is a vLLM that needs it."""
    torch = answer.get("torch") or {}
    install = f"{shlex.quote(str(python))} -m pip install torch" + (f"=={pin_torch}" if pin_torch else "")
    if "version" in torch:
        version = str(torch["version"])
        if pin_torch is None or version.partition("+")[0] == pin_torch:
            return Check("torch", "ok", version)
        return Check("torch", "note", f"{version}; the release was built for {pin_torch}")
    if torch.get("missing"):
        return Check("torch", "bad" if wanted else "note", f"not in {python}", install)
    what = torch.get("error") or f"importing it: {answer.trouble}"
    return Check("torch", "bad", f"it does not load: {what}", f"{install} --force-reinstall")


def check_triton(answer: Answer, engine: Answer | None, kernels: str, forked: bool) -> Check | None:
    """Triton as vLLM sees it, which is not whether it works."""
    triton = answer.get("triton")
    if triton is None:
        return None
    said = None if engine is None else engine.get("has_triton")
    has = bool(triton["has"] if said is None else said)
    what = f"{triton['version']}, " if triton.get("version") else ""
    source = "vLLM says" if said is not None else "vLLM would say"
    text = f"{what}{source} HAS_TRITON={has} ({triton['why']})"
    if said is not None and bool(said) != bool(triton["has"]):
        text = f"{what}vLLM says HAS_TRITON={has}; by its rules it would be {bool(triton['has'])} ({triton['why']})"
        return Check("triton", "note", text)
    if forked and kernels == "upstream" and not has:
        text += f"; {KERNELS}=upstream leaves it at that"
    return Check("triton", "ok" if has else "note", text)


def check_launch(answer: Answer, kernels: str, lock: Lock | None, root: Path | None) -> Check | None:
    """Whether a trivial kernel is compiled and runs; the fork's runner tries the same under `auto`."""
    launch: dict[str, Any] | None = answer.get("launch")
    crashed = answer.trouble is not None and answer.doing == "launching a Triton kernel"
    if launch is None and not crashed:
        return None
    if launch is not None and launch["works"]:
        return Check("launch", "ok", f"a trivial Triton kernel runs ({launch['why']})")
    believed = bool((answer.get("triton") or {}).get("has"))
    if launch is not None:
        text, again = f"no Triton kernel runs: {launch['why']}", f"unset {KERNELS}"
        # Upstream's kernels would be launched all the same where vLLM believes in Triton.
        harmful = believed and (lock is None or kernels == "upstream")
    else:
        # The runner's own attempt would end the same way, and the runner with it.
        text, again = f"a trivial Triton kernel takes its process with it: {answer.trouble}", f"export {KERNELS}=torch"
        harmful = believed and kernels != "torch"
    if lock is not None:
        return (
            Check("launch", "bad", text, again) if harmful else Check("launch", "note", f"{text}; the fork runs torch")
        )
    if root is None or not harmful:
        return Check("launch", "note", text)
    return Check("launch", "bad", f"{text}, and V2 would try", transaction.command(root, "apply"))


def check_device(answer: Answer) -> Check | None:
    """Whether there is one, or what went wrong before Triton was asked."""
    device = answer.get("device")
    if device is None:
        if answer.doing == "looking for a device":
            return Check("device", "bad", f"asking torch for a device: {answer.trouble}", "see the driver's own tools")
        return None
    if device.get("error"):
        return Check("device", "bad", f"torch cannot say: {device['error']}", "see the driver's own tools")
    if device["kind"] == "cpu":
        return Check("device", "note", "no device: torch sees the CPU only")
    return Check("device", "ok", f"{device['name']} ({device['kind']})")


def check_uva(answer: Answer, engine: Answer | None, root: Path) -> Check | None:
    """Unified virtual addressing: upstream's buffers of V2 need it, the fork's do without."""
    device = answer.get("device")
    uva = None if engine is None else engine.get("uva")
    platform = (engine.get("platform") or {}) if engine is not None else {}
    if uva is not None and platform.get("cpu"):
        return Check("UVA", "ok", "vLLM runs on the CPU, whose memory it sees")
    if device is None:
        return None
    if device["kind"] == "cpu":
        return Check("UVA", "note", "no device")
    if uva is None and not device.get("pinned"):
        return Check("UVA", "note", "memory can be pinned, which is all that vLLM asks; --run tries a view of it")
    if uva is None:
        lacking = f"memory cannot be pinned: {device['pinned']}"
    elif not uva["available"]:
        lacking = "vLLM says that there is none" + (f": {uva['view']}" if uva["view"] else "")
    elif uva["view"]:
        lacking = f"vLLM believes in it, but a view of host memory fails: {uva['view']}"
    else:
        return Check("UVA", "ok", "the device sees the memory of the host")
    if (root / _STAND_IN).is_file():
        return Check("UVA", "note", f"{lacking}; the fork keeps V2's state on the device instead")
    return Check("UVA", "bad", f"{lacking}; V2 needs it here", transaction.command(root, "apply"))
