"""The KUNLUN_* switches as the overlay's own module defines and reads them: one definition, two users."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kunlunfork import overlay
from kunlunfork.content import Content
from kunlunfork.errors import ForkError

MODULE = b"vllm/v1/worker/gpu/kunlun/switches.py"


@dataclass(frozen=True)
class Switch:
    """One variable; `value` is what this environment makes of it, in the words of `default`.

    `implied`: it is off only because the one that it needs is off.
    """

    name: str
    value: str
    implied: bool
    default: str
    values: str
    needs: str | None
    sites: str
    off: str


def _module(content: Content, version: str) -> ModuleType:
    files = overlay.resolve(content.overlay, version).files
    if MODULE not in files:
        raise ForkError(f"the fork of vLLM {version} has no switches", expected=os.fsdecode(MODULE))
    spec = importlib.util.spec_from_file_location("kunlunfork._switches", files[MODULE].source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def read(content: Content, version: str | None, environ: Mapping[str, str] = os.environ) -> tuple[Switch, ...]:
    """The switches of a pin (the newest, where none is named) in this environment.

    Raises:
        ForkError: a value or a name that the fork refuses at start-up, too.
    """
    pin = content.pin(version or content.newest())
    module = _module(content, pin.version)
    try:
        values = module.read(environ)
    except module.SwitchError as e:
        names = dict.fromkeys(p.partition("=")[0].split()[0] for p in e.problems)
        raise ForkError(
            "this environment holds KUNLUN_* variables that the fork refuses",
            details=e.problems,
            expected=f"only {', '.join(row.name for row in module.table())}",
            fix=f"correct them, or: unset {' '.join(names)}",
        ) from e
    return tuple(
        Switch(
            row.name, _shown(getattr(values, row.field)), not getattr(values, row.field) and _implied(row, environ),
            row.default, row.values, row.needs, row.sites, row.off,
        )
        for row in module.table()
    )  # fmt: skip


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _implied(row: Any, environ: Mapping[str, str]) -> bool:
    return row.needs is not None and row.name not in environ and row.default == "on"


def shell(switches: Sequence[Switch]) -> str:
    """Lines for a shell that lead to the same switches, and leave to what others imply what they imply."""
    words = {"on": "1", "off": "0"}
    return "\n".join(
        f"unset {s.name}" if s.implied else f"export {s.name}={words.get(s.value, s.value)}" for s in switches
    )
