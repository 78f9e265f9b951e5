# SPDX-License-Identifier: Apache-2.0
"""What to do about a trace on which the fork differs: make it small, keep it, say how to see it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from step import drive
from step.drive import Difference, Seen
from step.shrink import Shrinker
from step.trace import Trace, dumps


def first_difference(trace: Trace, variables: Mapping[str, str]) -> Difference | None:
    """Both runners on a trace. Raises what upstream's raises: then it shows nothing."""
    return drive.follow(trace, list(drive.oracle(trace)), variables)


def kind(difference: Difference) -> str:
    """What stays the same while a trace gets smaller: the first thing that differs, without its indices."""
    head = difference.lines[0].partition(":")[0]
    return f"{difference.where}: {re.sub(r'[0-9]+', '', head)}"


def shrink(trace: Trace, found: Difference, variables: Mapping[str, str], seconds: float) -> tuple[Trace, int]:
    """The smallest trace that was found to show the same difference, and how many were tried."""
    wanted = kind(found)

    def fails(candidate: Trace) -> int | None:
        try:
            seen: list[Seen] = list(drive.oracle(candidate))
        except Exception:  # noqa: BLE001 - upstream cannot run it: no trace at all
            return None
        difference = drive.follow(candidate, seen, variables)
        return difference.step if difference is not None and kind(difference) == wanted else None

    shrinker = Shrinker(trace, found.step, fails, seconds)
    return shrinker.run(), shrinker.tries


def keep(trace: Trace, found: Difference, variables: Mapping[str, str], folder: Path) -> Path:
    """Write the trace where the replay command finds it; the difference and the setting go in beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    off = "-".join(sorted(k.removeprefix("KUNLUN_") for k in variables if k != "KUNLUN_KERNELS")) or "on"
    path = folder / f"{trace.name}-{trace.seed}-{variables['KUNLUN_KERNELS']}-{off}.json"
    path.write_text(dumps(trace, {"variables": dict(variables), "found": str(found)}), encoding="utf-8")
    return path
