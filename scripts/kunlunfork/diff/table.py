"""Every class and function of an area in three versions: what the fork does with it, and what mainline did since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunlunfork import paths
from kunlunfork.diff import signatures, standins, text
from kunlunfork.diff.facts import Reader
from kunlunfork.diff.sides import Sides
from kunlunfork.diff.standins import BYPASSED, REPLACED, SHADOWED, SUBCLASSED, StandIn
from kunlunfork.diff.text import FileDiff
from kunlunfork.symbols.facts import Class, Facts, Function

SAME, PATCHED, FORK_ONLY, UPSTREAM_ONLY = "same", "patched", "fork only", "upstream only"
# What the fork does with a symbol, from nothing to most.
STATES = (SAME, BYPASSED, PATCHED, SUBCLASSED, SHADOWED, REPLACED, FORK_ONLY, UPSTREAM_ONLY)
NEW, GONE, MOVED, SIGNATURE, BODY = "new", "gone", "moved", "signature", "body"

Definition = Function | Class


@dataclass(frozen=True)
class Drift:
    """What mainline did with a symbol since the pin: `kind`, the releases in which it changed, and the signature's
    changes spelt out. `path` is where it is now, if its file was renamed."""

    kind: str
    versions: tuple[str, ...] = ()
    signature: tuple[str, ...] = ()
    path: str | None = None

    def __str__(self) -> str:
        where = f" to {self.path}" if self.path else ""
        if self.kind in (GONE, NEW) and self.versions:
            # It may have changed before, or come and gone.
            before = f", changed in {', '.join(self.versions[:-1])}" if len(self.versions) > 1 else ""
            return f"{self.kind} in {self.versions[-1]}{before}"
        said = f": {'; '.join(self.signature)}" if self.signature else ""
        return f"{self.kind}{where}" + (f" in {', '.join(self.versions)}" if self.versions else "") + said


@dataclass(frozen=True)
class Row:
    """One symbol, `path::name`; `line` is where it begins in the side that has it first (base, fork, mainline).

    `states` are all that hold, the strongest last; `by` what stands in for it, `patches` what changes it, `fork` the
    changes of its signature in the fork. `drift`: None where mainline left it as it was, or none was asked about.
    """

    path: str
    name: str
    kind: str
    line: int
    signature: str
    states: tuple[str, ...]
    by: tuple[StandIn, ...] = ()
    patches: tuple[str, ...] = ()
    fork: tuple[str, ...] = ()
    drift: Drift | None = None

    @property
    def state(self) -> str:
        return self.states[-1]

    @property
    def orphaned(self) -> bool:
        """Something of the fork stands in for it, and mainline has it no more under this name."""
        return bool(self.by) and self.drift is not None and self.drift.kind == GONE

    @property
    def plain(self) -> bool:
        """Nobody did anything with it."""
        return self.state == SAME and self.drift is None

    def as_json(self) -> dict[str, Any]:
        drift = self.drift
        return {
            "path": self.path, "name": self.name, "kind": self.kind, "line": self.line, "signature": self.signature,
            "state": self.state, "states": list(self.states), "by": [each.as_json() for each in self.by],
            "patches": list(self.patches), "signature_changes": list(self.fork),
            "orphaned": self.orphaned,
            "drift": None if drift is None else {
                "kind": drift.kind, "versions": list(drift.versions), "signature_changes": list(drift.signature),
                "path": drift.path,
            },
        }  # fmt: skip


def make(sides: Sides, reader: Reader, theirs: Sequence[FileDiff]) -> tuple[Row, ...]:
    """The table of the files that are meant, by path and line.

    Args:
        theirs: what the newer release changes in them, which says where files went.

    Raises:
        ForkError: a file of the overlay is not Python.
    """
    maker = _Maker(sides, reader, theirs)
    return tuple(row for path in maker.files() for row in maker.rows(path))


class _Maker:
    def __init__(self, sides: Sides, reader: Reader, theirs: Sequence[FileDiff]) -> None:
        self._sides, self._reader = sides, reader
        self._renamed = text.renamed(theirs)
        self._arrived = frozenset(self._renamed.values())
        self._standins: dict[tuple[str, str], list[StandIn]] = {}
        for each in standins.find(sides.fork):
            self._standins.setdefault((each.path, each.name), []).append(each)
        self._touched: dict[tuple[str, str], list[str]] = {}
        for patch in sides.fork.patches:
            for value in patch.header.all("Touches"):
                path, _, name = value.partition("::")
                self._touched.setdefault((path, name), []).append(patch.name)
        against = sides.against[1] if sides.against is not None else None
        self._against = against
        self._bypassed = self._not_launched()

    def files(self) -> list[bytes]:
        """The Python files that are meant, of all sides; those that mainline renamed, by their old name."""
        store, found = self._sides.store, set[bytes]()
        for tree in dict.fromkeys(filter(None, (self._sides.base, self._sides.shown, self._against))):
            found |= {p for p, _ in store.files(tree) if p.endswith(b".py") and self._sides.selection.has(p)}
        return sorted(found - self._arrived)

    def _not_launched(self) -> frozenset[tuple[str, str]]:
        """The kernels that only replaced launchers launch."""
        replaced = {key for key, found in self._standins.items() if any(s.kind == REPLACED for s in found)}
        ours, others = set[tuple[str, str]](), set[tuple[str, str]]()
        for path in {path for path, _ in replaced}:
            facts = self._reader.at(self._sides.base, path.encode())
            for name, function in facts.functions.items() if facts is not None else ():
                launched = {(path, call.to) for call in function.calls if call.launch}
                (ours if (path, name) in replaced else others).update(launched)
        return frozenset(ours - others)

    def rows(self, path: bytes) -> Iterator[Row]:
        sides, reader = self._sides, self._reader
        name = paths.to_text(path)
        base, shown = (reader.at(tree, path) or Facts() for tree in (sides.base, sides.shown))
        new = self._renamed.get(path, path)
        against = (reader.at(self._against, new) or Facts()) if self._against is not None else None
        versions = reader.versions(sides.rungs, path, new) if against is not None else ()
        every = [_all(facts) for facts in (base, shown, *([against] if against is not None else []))]
        found: list[Row] = []
        for symbol in dict.fromkeys(key for side in every for key in side):
            old, mine = every[0].get(symbol), every[1].get(symbol)
            theirs = every[2].get(symbol) if against is not None else None
            one = old or mine or theirs
            assert one is not None
            drift = None
            if against is not None:
                drift = _drift(symbol, old, theirs, versions, new if new != path else None, fork_only=mine is not None)
            found.append(self._row(name, symbol, one, old, mine, drift))
        if base is not shown and (patches := self._touched.get((name, ""))):
            yield Row(name, "", "module", 1, "", (PATCHED,), (), tuple(patches))
        yield from sorted(found, key=lambda row: (row.line, row.name))

    def _row(
        self, path: str, name: str, one: Definition, old: Definition | None, mine: Definition | None,
        drift: Drift | None,
    ) -> Row:  # fmt: skip
        stands = tuple(self._standins.get((path, name), ()))
        states: list[str] = [SAME]
        changed: tuple[str, ...] = ()
        patches: tuple[str, ...] = ()
        if old is None:
            states = [FORK_ONLY] if mine is not None else [UPSTREAM_ONLY]
        elif mine is None:
            states = [UPSTREAM_ONLY]
        else:
            if (path, name) in self._bypassed:
                states.append(BYPASSED)
            if _differ(old, mine):
                states.append(PATCHED)
                patches = tuple(
                    p for (where, what), names in self._touched.items() if where == path and _within(what, name)
                    for p in names
                )  # fmt: skip
                changed = _signature(old, mine)
            states += dict.fromkeys(stand.kind for stand in stands)
        order = tuple(sorted(states, key=STATES.index))
        if len(order) > 1:
            order = tuple(state for state in order if state != SAME)
        signature = one.signature if isinstance(one, Function) else _bases(one)
        return Row(path, name, _kind(one), one.line, signature, order, stands if old else (), patches, changed, drift)


def _all(facts: Facts) -> dict[str, Definition]:
    return {**facts.classes, **facts.functions}


def _kind(one: Definition) -> str:
    if isinstance(one, Class):
        return "class"
    return "kernel" if one.is_jit else "method" if "." in one.name else "function"


def _bases(one: Class) -> str:
    return f"({', '.join(one.bases)})" if one.bases else ""


def _within(touched: str, name: str) -> bool:
    """Whether a change in `touched` is one of `name`, too: a class changes with its methods."""
    return bool(touched) and (touched == name or touched.startswith(f"{name}.") or name.startswith(f"{touched}."))


def _differ(old: Definition, new: Definition) -> bool:
    if isinstance(old, Class) or isinstance(new, Class):
        return type(old) is not type(new) or old.body != new.body or old.decorators != new.decorators
    return (old.body, old.params, old.returns, old.decorators) != (new.body, new.params, new.returns, new.decorators)


def _signature(old: Definition, new: Definition) -> tuple[str, ...]:
    if isinstance(old, Function) and isinstance(new, Function):
        return signatures.changes(old, new)
    if isinstance(old, Class) and isinstance(new, Class):
        return (f"bases {_bases(new) or 'none'}, not {_bases(old) or 'none'}",) if old.bases != new.bases else ()
    return (f"a {_kind(new)}, not a {_kind(old)}",)


def _drift(
    name: str, old: Definition | None, new: Definition | None, versions: Sequence[tuple[str, Facts]],
    moved: bytes | None, *, fork_only: bool,
) -> Drift | None:  # fmt: skip
    if old is None and new is None:
        return None
    changed = tuple(_changed_in(name, old, versions))
    where = paths.to_text(moved) if moved is not None else None
    if old is None:
        return Drift("taken" if fork_only else NEW, changed[:1])
    if new is None:
        return Drift(GONE, changed)
    if not _differ(old, new):
        return Drift(MOVED, changed, path=where) if where is not None else None
    said = _signature(old, new)
    return Drift(SIGNATURE if said else BODY, changed, said, where)


def _changed_in(name: str, old: Definition | None, versions: Iterable[tuple[str, Facts]]) -> Iterator[str]:
    was = old
    for version, facts in versions:
        now = _all(facts).get(name)
        if (was is None) != (now is None) or (was is not None and now is not None and _differ(was, now)):
            yield version
        was = now


def counts(rows: Iterable[Row]) -> Mapping[str, int]:
    """How many symbols the fork does what with, in the order of `STATES`."""
    found = dict.fromkeys(STATES, 0)
    for row in rows:
        found[row.state] += 1
    return {state: count for state, count in found.items() if count}
