# SPDX-License-Identifier: Apache-2.0
"""Which build of the fork this is, as `kunlunfork apply` wrote it into `_build.py`."""

import importlib
from dataclasses import dataclass

NAME = "kunlunfork"
UNSTAMPED = "unstamped"


@dataclass(frozen=True)
class Stamp:
    """`pin` is a vLLM version, `series` and `overlay` are SHA-256 in hex."""

    pin: str
    series: str
    overlay: str

    def __str__(self) -> str:
        if self.pin == UNSTAMPED:
            return f"{NAME} ({UNSTAMPED}: a developer's tree)"
        return f"{NAME} {self.pin} (overlay {self.overlay[:12]}, series {self.series[:12]})"

    def member(self) -> dict[str, str]:
        """What `/version` says beside vLLM's own version."""
        return {"pin": self.pin, "overlay": self.overlay, "series": self.series}


def read() -> Stamp:
    """The stamp of this tree; every field is `unstamped` where apply has not run."""
    name = f"{__package__}._build"
    try:
        build = importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        return Stamp(UNSTAMPED, UNSTAMPED, UNSTAMPED)
    return Stamp(build.PIN, build.SERIES, build.OVERLAY)
