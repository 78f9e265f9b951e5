"""What vouches for a contract that drifted: a green cell of the parity matrix on the new pin, a person, or that the
fork of the new pin relies on it no more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork.contracts import drift as drifts
from kunlunfork.contracts import model
from kunlunfork.contracts.drift import Drift
from kunlunfork.contracts.pinfile import PinFile
from kunlunfork.diff.sites import Site
from kunlunfork.matrix import records
from kunlunfork.matrix.records import Record
from kunlunfork.symbols.release import module_of

RESULTS = Path("ci") / "results" / "matrix.jsonl"
# What a tier goes through, with upstream's own objects: one launcher at a time, whole steps of the runner, engines.
_OPS, _STEP, _E2E = "ops", "step", "e2e"
_FROM_CALLERS = frozenset({"callers", "set by"})
_STEP_ROLES = frozenset({model.OVERRIDES, model.ATTRIBUTE, model.CALLS, model.USES, model.SUBCLASSES, model.IMPORTS})
_SITE_ROLES = frozenset({model.REPLACES, model.BEHIND})


@dataclass(frozen=True)
class Evidence:
    """What is known of the fork at the pin that the drift leads to.

    `contracts` are the symbols that it relies on, None where there is no such pin yet; `records` those that were made
    of it as it is.
    """

    contracts: frozenset[str] | None
    records: tuple[Record, ...]
    acks: PinFile
    sites: Mapping[str, tuple[int, ...]]

    @property
    def tiers(self) -> Mapping[str, Record]:
        """The tiers of which nothing failed."""
        return {r.tier: r for r in self.records if r.cells and not any(s.bad for s in r.sums)}


def read(root: Path, pin: str, series: str, overlay: str) -> tuple[Record, ...]:
    """The records of a fork: those of other hashes say nothing of it, nor does a line that cannot be read."""
    found = []
    try:
        lines = (root / RESULTS).read_bytes().splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            record = records.parse(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        if (record.pin, record.series, record.overlay) == (pin, series, overlay):
            found.append(record)
    return tuple(found)


def ids(sites: Iterable[Site]) -> dict[str, tuple[int, ...]]:
    """The numbers of the kernels behind each launcher."""
    return {f"{module_of(site.path.encode())}:{site.qualname}": site.ids for site in sites}


def cover(found: Drift, evidence: Evidence) -> str:
    """What vouches for it, in words; '' for nothing."""
    symbol = str(found.contract)
    ack = evidence.acks.acks.get(symbol)
    if ack is not None and ack.key == found.key:
        return f"acknowledged: {ack.why}"
    if evidence.contracts is None:
        return ""
    if symbol not in evidence.contracts and (found.to is None or str(found.to) not in evidence.contracts):
        return "the fork of this pin relies on it no more"
    if found.to is None or drifts.IMPORT in found.classes:
        return ""
    tiers = evidence.tiers
    if _E2E in tiers:
        return f"cell e2e of {tiers[_E2E].date[:10]}"
    said = []
    classes = set(found.classes)
    roles = set(found.contract.roles)
    if classes - _FROM_CALLERS:
        name = _cell(found, evidence)
        if name and (roles & _SITE_ROLES or found.contract.sites) and not roles & {model.REBINDS, model.PATCHED}:
            said.append(f"cells {name}")
        elif _STEP in tiers and roles <= _STEP_ROLES:
            said.append(f"cells step of {tiers[_STEP].date[:10]}")
        else:
            return ""
    if classes & _FROM_CALLERS:
        if _STEP not in tiers:
            return ""
        said.append(f"cells step of {tiers[_STEP].date[:10]}")
    return ", ".join(dict.fromkeys(said))


def _cell(found: Drift, evidence: Evidence) -> str:
    """The launchers of the matrix that stand for all sites of a contract; '' where one was not measured or failed."""
    names: list[str] = []
    for launcher in found.contract.sites:
        wanted = set(evidence.sites.get(launcher, ()))
        sums = [s for r in evidence.records if r.tier == _OPS for s in r.sums if wanted & set(s.sites)]
        covered = {i for s in sums for i in s.sites}
        if not wanted or not wanted <= covered or any(s.bad for s in sums) or not any(s.cells for s in sums):
            return ""
        names += [s.launcher for s in sums]
    return ", ".join(dict.fromkeys(names))
