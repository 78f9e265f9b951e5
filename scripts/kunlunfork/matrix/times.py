"""Recorded times: `ci/results/times.json`, which plans shards alike on every machine, and the cache's own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from kunlunfork.content import Content
from kunlunfork.errors import ForkError

SCHEMA = 1


def recorded(content: Content) -> Path:
    return content.root / "ci" / "results" / "times.json"


def read(path: Path) -> dict[str, float]:
    """Unit -> seconds; empty where there is no such file.

    Raises:
        ForkError: it is not as `write` leaves it.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}")
        found = {str(unit): float(spent) for unit, spent in raw["seconds"].items()}
        if not all(math.isfinite(spent) and spent >= 0 for spent in found.values()):
            raise ValueError("seconds that are none")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ForkError(
            f"{path} does not hold recorded times", found=f"{type(e).__name__}: {e}"[:200], fix="remove it"
        ) from e
    return found


def read_or_guess(path: Path) -> dict[str, float]:
    """As `read`, and empty where the file is not good: it only balances the work."""
    try:
        return read(path)
    except ForkError:
        return {}


def write(path: Path, seconds: Mapping[str, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"schema": SCHEMA, "seconds": dict(sorted(seconds.items()))}
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
