"""The variables of this environment that the fork and vLLM obey."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import switches
from kunlunfork.content import Content
from kunlunfork.doctor.check import Check
from kunlunfork.doctor.runner import VARIABLE
from kunlunfork.errors import ForkError

KERNELS = "KUNLUN_KERNELS"
# Backend -> the folder of the overlay that has it.
_FOLDERS = {"fused": "kernels", "vendor": "vendor"}
_PACKAGE = "vllm/v1/worker/gpu/kunlun"


@dataclass(frozen=True)
class Asked:
    """What the environment asks for: the backend, and V2 or V1.

    `unreadable`: vLLM cannot read the latter. `refused`: the fork stops at the KUNLUN_* variables.
    """

    kernels: str
    v2: bool | None
    unreadable: bool = False
    refused: bool = False


def read(content: Content | None, version: str | None, environ: Mapping[str, str]) -> tuple[Asked, tuple[Check, ...]]:
    """The switches, the backend, and VLLM_USE_V2_MODEL_RUNNER."""
    checks = [] if content is None else [_switches(content, version, environ)]
    refused = any(c.state == "bad" for c in checks)
    v2, unreadable = None, False
    if VARIABLE in environ:
        try:
            v2 = bool(int(environ[VARIABLE]))
        except ValueError:
            unreadable = True
    asked = Asked(environ.get(KERNELS, "auto").lower(), v2, unreadable, refused)
    return asked, (*checks, _variable(asked, environ))


def _switches(content: Content, version: str | None, environ: Mapping[str, str]) -> Check:
    try:
        known = version if version in content.versions() else None
        found = switches.read(content, known, environ)
    except ForkError as e:
        wrong = [line.split()[0].partition("=")[0] for line in e.details]
        fix = f"unset {' '.join(dict.fromkeys(wrong))}" if wrong else e.fix
        return Check("switches", "bad", e.message, fix, e.details)
    set_ = [f"{s.name}={s.value}" for s in found if s.name in environ]
    return Check("switches", "ok", " ".join(set_) if set_ else "all at their defaults")


def _variable(asked: Asked, environ: Mapping[str, str]) -> Check:
    near = [name for name in environ if name.startswith("VLLM_") and name != VARIABLE and _is_near(name)]
    if near:
        text = f"{near[0]} is not a variable of vLLM; did you mean {VARIABLE}?"
        return Check("variables", "bad", text, f"unset {' '.join(near)}")
    if asked.unreadable:
        text = f"{VARIABLE}={environ[VARIABLE]!r}, which vLLM cannot read as 0 or 1"
        return Check("variables", "bad", text, f"unset {VARIABLE}")
    if asked.v2 is None:
        return Check("variables", "ok", f"{VARIABLE} is not set")
    return Check("variables", "ok", f"{VARIABLE}={environ[VARIABLE]}: {'V2' if asked.v2 else 'V1'} is asked for")


def _is_near(name: str) -> bool:
    return difflib.SequenceMatcher(None, name.upper(), VARIABLE).ratio() > 0.9


def check_backend(kernels: str, root: Path, forked: bool) -> Check | None:
    """Whether the tree has the backend that is asked for."""
    if not forked:
        return None
    folder = _FOLDERS.get(kernels)
    if folder is not None and not (root / _PACKAGE / folder).is_dir():
        return Check("backend", "bad", f"{KERNELS}={kernels} is not in this build", f"unset {KERNELS}")
    return None


def gate(kernels: str, root: Path, whole: bool, upstream: bool | None) -> bool | None:
    """What the fork's own gate answers in place of HAS_TRITON; None where nobody knows."""
    if upstream:
        return True
    # The fork's own kernels are Triton's too.
    if kernels in ("upstream", "fused"):
        return upstream
    if kernels in _FOLDERS:
        return None if (root / _PACKAGE / _FOLDERS[kernels]).is_dir() else upstream
    # The fork as it was applied has all its sites, made for the release that it was applied to.
    return True if whole else None
