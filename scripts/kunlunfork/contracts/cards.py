"""A drift as a person reads it: what it was, what it is, what upstream did, who depends on it, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from kunlunfork.contracts import drift as drifts
from kunlunfork.contracts import model
from kunlunfork.contracts.drift import Drift, Found
from kunlunfork.contracts.moved import text_of
from kunlunfork.symbols.release import Modules, Symbol

# A diff longer than this is cut; the whole is a `git diff` away.
_MOST = 160
_ROLES = {
    model.REPLACES: "the fork runs in its place", model.BEHIND: "behind a launcher that the fork replaces",
    model.OVERRIDES: "the fork overrides it", model.REBINDS: "the fork puts something else there",
    model.MIRRORS: "the fork mirrors it", model.PATCHED: "a patch edits it, or what it uses",
    model.SUBCLASSES: "the fork subclasses it", model.CALLS: "the fork calls it",
    model.ATTRIBUTE: "the fork uses it", model.USES: "the fork names it", model.IMPORTS: "the fork imports it",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One class of drift: `old` and `new` as text, '' where the diff says it."""

    kind: str
    old: str
    new: str


@dataclass(frozen=True)
class Card:
    """`covered` is what vouches for it, '' for nothing."""

    drift: Drift
    covered: str
    changes: tuple[Change, ...]
    diff: tuple[str, ...]
    todo: tuple[str, ...]

    @property
    def title(self) -> str:
        to = self.drift.to
        return str(self.drift.contract) + (f" -> {to}" if to is not None and to != self.drift.contract.symbol else "")

    @property
    def why(self) -> str:
        return _ROLES[self.drift.contract.roles[0]]

    def as_json(self) -> dict[str, Any]:
        d = self.drift
        return {
            "symbol": str(d.contract), "to": None if d.to is None else str(d.to), "classes": list(d.classes),
            "roles": list(d.contract.roles), "covered": self.covered or None,
            "steps": [{"version": s.version, "classes": list(s.classes)} for s in d.steps],
            "dependants": list(d.contract.users), "imported_as": list(d.contract.paths),
            "sites": list(d.contract.sites),
            "changes": [{"class": c.kind, "old": c.old, "new": c.new} for c in self.changes],
            "diff": "\n".join(self.diff), "todo": list(self.todo), "key": d.key,
        }  # fmt: skip


def card(found: Found, drift: Drift, covered: str) -> Card:
    diff = _diff(found, drift)
    changes = tuple(c for kind in drift.classes for c in _changes(kind, drift))
    return Card(drift, covered, changes, diff, tuple(_todo(drift, found)))


def _diff(found: Found, drift: Drift) -> tuple[str, ...]:
    symbol = drift.contract.symbol
    old = _lines(found.old, symbol)
    new = _lines(found.new, drift.to) if drift.to is not None else []
    names = (f"{symbol} ({found.first})", f"{drift.to or 'nothing'} ({found.last})")
    lines = list(unified_diff(old, new, *names, lineterm="", n=2))
    if len(lines) > _MOST:
        lines = [*lines[:_MOST], f"... {len(lines) - _MOST} more lines"]
    return tuple(lines)


def _lines(release: Modules, symbol: Symbol) -> list[str]:
    found = text_of(release, symbol)
    owner, _, name = symbol.name.rpartition(".")
    if found or not owner:
        return found
    # An attribute: the lines that set it.
    attribute = release.attribute(Symbol(symbol.module, owner), name)
    if attribute is None:
        return []
    within = text_of(release, Symbol(symbol.module, owner))
    wanted = re.compile(rf"(self\.)?{re.escape(name)}\b[^=]*[:=](?!=)")
    return [line.strip() for line in within if wanted.match(line.strip())]


def _changes(kind: str, drift: Drift) -> Iterable[Change]:
    old = drift.old.facets.get(kind, "")
    new = "" if drift.new is None else drift.new.facets.get(kind, "")
    # The rest is in the diff.
    if kind in ("callers", "set by"):
        yield Change(kind, *(_only(a, b) for a, b in ((old, new), (new, old))))
    elif kind in ("signature", "default", "types", "bases", "members", "decorator", "shapes"):
        yield Change(kind, *_differing(old, new))
    elif kind == drifts.KIND:
        yield Change(kind, drift.old.kind, drift.new.kind if drift.new else "")
    elif kind in (drifts.MOVED, drifts.RENAMED):
        yield Change(kind, str(drift.contract.symbol), str(drift.to))
    elif kind == drifts.IMPORT:
        yield Change(kind, ", ".join(drift.contract.paths), f"not there; it is {drift.to}")


def _only(one: str, other: str) -> str:
    """The lines of one that the other lacks, without their fingerprints."""
    lines = [line for line in one.split("\n") if line and line not in other.split("\n")]
    same = {line.rpartition(" ")[0] for line in other.split("\n")}
    bare = [line.rpartition(" ")[0] for line in lines]
    return "\n".join(f"{line}: passes other things" if line in same else line for line in bare)


def _differing(old: str, new: str) -> tuple[str, str]:
    """Two texts; of several lines, only those that the other lacks."""
    a, b = old.split("\n"), new.split("\n")
    return "\n".join(x for x in a if x not in b), "\n".join(x for x in b if x not in a)


def _todo(drift: Drift, found: Found) -> Iterable[str]:
    roles, classes = drift.contract.roles, set(drift.classes)
    where = ", ".join(drift.contract.users[:3]) + (" ..." if len(drift.contract.users) > 3 else "")
    if drifts.REMOVED in classes:
        yield f"upstream has it no more: find what does its work in {found.last}, and change {where}"
        return
    if classes & {drifts.MOVED, drifts.RENAMED, drifts.IMPORT}:
        yield f"name {drift.to} in {where}"
    if model.REPLACES in roles and classes & {"signature", "default"}:
        yield "give the launcher of the fork, and `sites.py`, upstream's parameters"
    elif classes & {"signature", "default"}:
        yield f"check what {where} passes, or takes"
    if classes & {"body", "types", "decorator", "kind"}:
        part = {model.REPLACES: "port it to the launcher", model.BEHIND: "port it to the launcher in front of it"}
        yield f"read upstream's change: {part.get(roles[0], f'does {where} still hold?')}"
    if "shapes" in classes:
        yield f"shapes or dtypes are others now: see {where}"
    if classes & {"callers", "set by"}:
        yield "upstream passes other things now (a dtype, an order, a new caller): does the fork take them?"
    if classes & {"bases", "members"}:
        yield f"the base has members that {where} gets in the way of, or must have"
