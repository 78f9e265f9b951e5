"""A line of `ci/results/matrix.jsonl`: the sums of one tier of a run. Its cells would be too many to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kunlunfork.matrix import resultlines
from kunlunfork.matrix.cells import BAD, OUTCOMES, Cell

WHAT = "matrix"
SCHEMA = 2


@dataclass(frozen=True)
class Sum:
    """Of the cells of one launcher under one setting; `setting` is None where no setting was bound."""

    tier: str
    launcher: str
    sites: tuple[int, ...]
    setting: str | None
    cells: int
    bad: int
    skipped: int
    error: float
    seconds: float


@dataclass(frozen=True)
class Record:
    """One tier of a run on a pin and a device, with the hashes of what was tested."""

    pin: str
    device: str
    tier: str
    series: str
    overlay: str
    date: str
    versions: Mapping[str, str]
    machine: str
    switches: str
    backends: tuple[str, ...]
    sums: tuple[Sum, ...]

    @property
    def cells(self) -> int:
        return sum(s.cells for s in self.sums)


def sums(cells: Sequence[Cell]) -> tuple[Sum, ...]:
    """Of each tier, launcher and setting, in the order of the kernels' ids and of `setting_order`."""
    groups: dict[tuple[str, str, str | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.run.tier, cell.launcher, cell.setting), []).append(cell)
    found = [
        Sum(
            tier, launcher, group[0].sites, setting, len(group), sum(c.outcome in BAD for c in group),
            sum(c.outcome == "skipped" for c in group), max(c.error or 0.0 for c in group),
            round(sum(c.seconds for c in group), 3),
        )
        for (tier, launcher, setting), group in groups.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda s: (*row_order(s), setting_order(s.setting))))


def row_order(found: Sum) -> tuple[str, bool, tuple[int, ...], str]:
    return found.tier, not found.sites, found.sites, found.launcher


def setting_order(setting: str | None) -> tuple[bool, bool, bool, int, str]:
    """All on, those with one switch off, with two, ..., all off, none."""
    name = setting or ""
    return setting is None, name == "all-off", name != "all-on", name.count(","), name


def lines(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One line for each pin, device and tier of the cells."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        run = cell.run
        groups.setdefault((run.pin, run.device, run.tier, run.series, run.overlay), []).append(cell)
    return [_line(group) for _, group in sorted(groups.items())]


def _line(group: Sequence[Cell]) -> dict[str, Any]:
    runs = list({id(c.run): c.run for c in group}.values())
    last = max(runs, key=lambda r: r.date or "")
    launchers: dict[str, dict[str, Any]] = {}
    for s in sums(group):
        row = launchers.setdefault(
            s.launcher, {"launcher": s.launcher, "sites": list(s.sites), "error": 0.0, "seconds": 0.0, "settings": []}
        )
        row["error"] = max(row["error"], s.error)
        row["seconds"] = round(row["seconds"] + s.seconds, 3)
        row["settings"].append([s.setting, s.cells, s.bad, s.skipped])
    return {
        "schema": SCHEMA,
        "what": WHAT,
        "date": last.date,
        "command": [_public(word) for word in last.command],
        "machine": last.machine,
        "pin": last.pin,
        "device": last.device,
        "tier": last.tier,
        "switches": ",".join(dict.fromkeys(r.switches for r in runs if r.switches)),
        "backends": sorted({c.backend for c in group if c.backend}),
        "seed": last.seed,
        "random": last.random,
        "versions": last.versions,
        "series_hash": last.series,
        "overlay_hash": last.overlay,
        "counts": {o: n for o in OUTCOMES if (n := sum(c.outcome == o for c in group))},
        "seconds": round(sum(c.seconds for c in group), 1),
        "launchers": list(launchers.values()),
    }


def _public(word: str) -> str:
    """A word of a command line without the folders of this machine: records are kept where all can read them."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_public(value)}"
    return PurePosixPath(word).name if word.startswith(("/", "~", "..")) else word


def parse(raw: Mapping[str, Any]) -> Record:
    """Raises `ValueError`, `KeyError`, `TypeError` where the line is not as `lines` makes it, or as version 1 was."""
    if raw.get("schema") not in (1, SCHEMA):
        raise ValueError(f"schema {raw.get('schema')!r}"[:100])
    tier = resultlines.text(raw, "tier")
    found: list[Sum] = []
    for row in raw["launchers"]:
        sites, launcher = tuple(map(int, row["sites"])), resultlines.text(row, "launcher")
        settings = row["settings"] if raw["schema"] == SCHEMA else [[None, row["cells"], row["bad"], 0]]
        for i, (setting, *counts) in enumerate(settings):
            if not (setting is None or isinstance(setting, str)):
                raise ValueError(f"settings: {setting!r}"[:100])
            cells, bad, skipped = map(int, counts)
            # The time is known of the launcher as a whole.
            seconds = float(row.get("seconds", 0.0)) if i == 0 else 0.0
            found.append(Sum(tier, launcher, sites, setting, cells, bad, skipped, float(row["error"]), seconds))
    machine = raw["machine"]
    return Record(
        pin=resultlines.text(raw, "pin"),
        device=resultlines.text(raw, "device"),
        tier=tier,
        series=resultlines.text(raw, "series_hash"),
        overlay=resultlines.text(raw, "overlay_hash"),
        date=resultlines.text(raw, "date"),
        versions={str(k): str(v) for k, v in raw["versions"].items()},
        machine=machine if isinstance(machine, str) else ", ".join(f"{k} {v}" for k, v in machine.items()),
        switches=str(raw.get("switches") or ""),
        backends=tuple(map(str, raw["backends"])),
        sums=tuple(found),
    )
