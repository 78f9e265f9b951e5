"""Whether a rebase whose text merged is clean: every contract that drifted is vouched for, no definition was lost."""

from __future__ import annotations

from dataclasses import dataclass

from kunlunfork.contracts import run
from kunlunfork.contracts.run import Report, Workshop
from kunlunfork.symbols.facts import Facts
from kunlunfork.symbols.release import Modules


@dataclass(frozen=True)
class Gate:
    """`onto` is what was asked for. `lost` are definitions that upstream or a patch has and the merged file has not, as
    `module:name`."""

    report: Report
    onto: str
    lost: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.report.open and not self.lost


def look(shop: Workshop, start: str, onto: str) -> Gate:
    """Judge a rebase (raises `ForkError`).

    Args:
        start: the pin that was carried.
        onto: where to: a pin that is there by now, or a release or commit that was only tried.
    """
    report = run.find(shop, start, onto)
    if report.last not in shop.content.versions():
        return Gate(report, onto)
    (old, before), (new, after) = shop.held(report.first), shop.held(report.last)
    return Gate(report, onto, lost(before, old.modules, after, new.modules))


def lost(before: Modules, ours: Modules, after: Modules, merged: Modules) -> tuple[str, ...]:
    """Definitions that are missing from what a merge made.

    Args:
        before, after: upstream, at the old pin and at the new one.
        ours, merged: the same with the fork's patches.
    """
    found = []
    for module, path in merged.paths.items():
        if merged.entries[path] == after.entries.get(path):
            continue
        now = _names(after.facts(module))
        was, had = _names(before.facts(module)), _names(ours.facts(module))
        wanted = (now | (had - was)) - (was - had)
        found += [f"{module}:{name}" for name in sorted(wanted - _names(merged.facts(module)))]
    return tuple(found)


def _names(facts: Facts | None) -> set[str]:
    return set() if facts is None else {*facts.functions, *facts.classes, *facts.constants}
