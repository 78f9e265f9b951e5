"""`bench host`: what the host does in a decode step, by phase, for several variants in one sitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from kunlunfork.bench.engines import Engine

KINDS = ("launches", "graphs", "copies", "syncs", "aten ops")


def measure(
    engines: Sequence[Engine],
    loads: Sequence[int],
    turns: int,
    steps: int,
    profiled: int,
    note: Callable[[str], object],
) -> list[dict[str, Any]]:
    """One row a variant and load: medians of `steps` steps, and of these the median of `turns` turns.

    Profiles are taken last, at the last load: a process is slower after one.
    """
    rows = []
    for load in loads:
        answers: list[list[dict[str, float]]] = [[] for _ in engines]
        for _ in range(turns):
            for engine, own in zip(engines, answers, strict=True):
                answer = engine.ask({"do": "host", "requests": load, "steps": steps, "profiled": 0})
                own += [] if answer is None else [answer["us"]]
        for engine, own in zip(engines, answers, strict=True):
            told = {"error": engine.error} if engine.error is not None or not own else {"us": _medians(own)}
            rows.append({**_named(engine, load), **told})
        note(f"{load} requests timed")
    for found, engine in zip(rows[-len(engines) :], engines, strict=True):
        answer = engine.ask({"do": "host", "requests": loads[-1], "steps": 1, "profiled": profiled})
        if answer is not None:
            found["a step"] = answer["a step"]
    return rows


def _medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    phases = dict.fromkeys(phase for turn in turns for phase in turn)
    return {phase: round(median(turn.get(phase, 0.0) for turn in turns), 1) for phase in phases}


def _named(engine: Engine, load: int) -> dict[str, Any]:
    variant = engine.variant
    return {
        "variant": variant.name,
        "drafts": variant.drafts,
        "views hidden": variant.hide_views,
        "requests": load,
        "runs": engine.about.get("plan") or engine.about.get("runner"),
    }


def tables(rows: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """For each kind of engine and load: microseconds by phase, one column a variant; then what was counted."""
    found = []
    kinds = dict.fromkeys((r["drafts"], r["requests"]) for r in rows)
    for drafts, load in kinds:
        group = [r for r in rows if (r["drafts"], r["requests"]) == (drafts, load) and "us" in r]
        if not group:
            continue
        title = f"us a step, {load} requests, {'dspark' if drafts else 'no drafts'}"
        header = (title, *(r["variant"] for r in group))
        phases = dict.fromkeys(phase for r in group for phase in r["us"])
        lines = [(phase, *(_us(r["us"].get(phase)) for r in group)) for phase in phases]
        lines += _counted(group)
        found.append((header, lines))
    return found


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _counted(group: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    if not any("a step" in r for r in group):
        return []
    steps = [r.get("a step", {}) for r in group]
    lines = [(f"{kind} a step", *(f"{s.get('all', {}).get(kind, 0):g}" for s in steps)) for kind in KINDS]
    lines.append(("kernels a step", *(f"{s.get('kernels', 0):g}" for s in steps)))
    lines.append(("device busy, us", *(f"{s.get('device busy us', 0):g}" for s in steps)))
    return lines
