"""What `bench apply` says: every number, where it came from, and how it stands to its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kunlunfork.bench.measure import Reading, Timed

WARM = "nothing was dropped from the page cache: archive, store and programs were read before, and are in memory"


@dataclass(frozen=True)
class Target:
    """At most `limit`: seconds of the step `name`, or its time as a multiple of that of `against`."""

    name: str
    limit: float
    against: str | None = None

    @property
    def title(self) -> str:
        return self.name if self.against is None else f"{self.name} / {self.against}"


# The issue's. The ratios that have no limit are for orientation.
TARGETS = (
    Target("new", 1.5, "worktree add"),
    Target("in place", 1.0),
    Target("import", 2.0, "tar"),
    Target("help", 0.2),
)
RATIOS = (("new, in process", "worktree add"), ("new", "clone, am"), ("in place", "quilt"))


@dataclass(frozen=True)
class Verdict:
    """`value` is of the medians, and decides; `least` of the shortest times."""

    target: Target
    value: float
    least: float

    @property
    def met(self) -> bool:
        return self.value <= self.target.limit


def judge(timed: Sequence[Timed], targets: Sequence[Target] = TARGETS) -> tuple[Verdict, ...]:
    """How the readings stand to the targets whose steps were measured."""
    by_name = {t.step.name: t for t in timed}
    found = []
    for target in targets:
        own, other = by_name.get(target.name), by_name.get(target.against or target.name)
        if own is None or other is None:
            continue
        unit = (other.median, other.least) if target.against else (1.0, 1.0)
        found.append(Verdict(target, own.median / unit[0], own.least / unit[1]))
    return tuple(found)


def ratios(timed: Sequence[Timed], pairs: Sequence[tuple[str, str]] = RATIOS) -> dict[str, float]:
    """Times of the first as multiples of the second, by medians, where both were measured."""
    by_name = {t.step.name: t.median for t in timed}
    return {f"{a} / {b}": by_name[a] / by_name[b] for a, b in pairs if a in by_name and b in by_name}


def as_json(timed: Sequence[Timed], verdicts: Sequence[Verdict], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report; times are in seconds."""
    return {
        **about,
        "page_cache": WARM,
        "rounds": len(timed[0].rounds),
        "steps": [_step(t) for t in timed],
        "ratios": {name: round(value, 3) for name, value in ratios(timed).items()},
        "targets": [
            {
                "name": v.target.title,
                "unit": "s" if v.target.against is None else "ratio",
                "limit": v.target.limit,
                "value": round(v.value, 3),
                "value_of_minima": round(v.least, 3),
                "met": v.met,
            }
            for v in verdicts
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _step(timed: Timed) -> dict[str, Any]:
    def values(readings: Sequence[Reading]) -> list[dict[str, float | None]]:
        return [{name: _rounded(value) for name, value in asdict(r).items()} for r in readings]

    return {
        "name": timed.step.name,
        "what": timed.step.what,
        "median": round(timed.median, 4),
        "min": round(timed.least, 4),
        "cpu_median": round(timed.cpu, 4),
        "others_busy": _rounded(timed.others),
        "all": values(timed.rounds),
        "warm_up": values([timed.warm_up])[0],
    }


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def steps_table(timed: Sequence[Timed]) -> Table:
    head = ("step", "median s", "min s", "cpu s", "others", "what")
    return head, [
        (t.step.name, f"{t.median:8.3f}", f"{t.least:5.3f}", f"{t.cpu:5.3f}", _busy(t.others), t.step.what)
        for t in timed
    ]


def _busy(others: float | None) -> str:
    return "" if others is None else f"{others:6.2f}"


def targets_table(verdicts: Sequence[Verdict], others: Mapping[str, float]) -> Table:
    head = ("compared", "value", "of minima", "target", "")
    body: list[tuple[str, ...]] = []
    for v in verdicts:
        unit = " s" if v.target.against is None else "x"
        value, least, limit = (f"{x:.2f}{unit}" for x in (v.value, v.least, v.target.limit))
        body.append((v.target.title, value, least, f"<= {limit}", "met" if v.met else "missed"))
    body += [(name, f"{value:.2f}x", "", "", "") for name, value in others.items()]
    return head, body
