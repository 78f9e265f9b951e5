"""Recorded times: `ci/results/times.json`, which plans shards alike on every machine, and the cache's own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from kunlunfork import outfile
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.matrix import results, schedule
from kunlunfork.matrix.cells import ERROR

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
    """Raises `ForkError` where the file cannot be written."""
    body = {"schema": SCHEMA, "seconds": dict(sorted(seconds.items()))}
    path.parent.mkdir(parents=True, exist_ok=True)
    with outfile.writing(path) as out:
        out.write((json.dumps(body, indent=1) + "\n").encode())


def learn(path: Path, files: Sequence[Path]) -> int:
    """Record what results took; units of their tiers that they have not are forgotten. Returns how many they have.

    Raises:
        ForkError: the results or the file cannot be read, or the file cannot be written.
    """
    cells = [cell for cell in results.load(files).cells if cell.outcome != ERROR]
    found = schedule.learn(cells)
    tiers = {cell.run.tier for cell in cells}
    kept = {unit: spent for unit, spent in read(path).items() if unit.partition(":")[0] not in tiers}
    write(path, {**kept, **found})
    return len(found)
