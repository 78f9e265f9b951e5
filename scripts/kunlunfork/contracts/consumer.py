"""The contracts of any package that builds on vLLM, and what another release breaks of it: by reading alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import scopes
from kunlunfork.contracts import drift as drifts
from kunlunfork.contracts import model
from kunlunfork.contracts.callers import Callers
from kunlunfork.contracts.drift import Drift, Found
from kunlunfork.contracts.extract import Held, combined, members, overrides
from kunlunfork.contracts.model import Use
from kunlunfork.contracts.typed import Kind
from kunlunfork.contracts.usage import Ours, Passed, uses
from kunlunfork.errors import ForkError
from kunlunfork.symbols.facts import Class, Function
from kunlunfork.symbols.release import TOP, Given, Modules, Release, Symbol, module_of

_SKIP = frozenset({"__pycache__", "node_modules", "build", "dist", "site-packages"})
_ROUNDS = 4


@dataclass(frozen=True)
class Break:
    """Something of the consumer that does not work with the new release: `kind` is a class of drift, `call` (it no
    longer fits what is called) or `override` (upstream passes what it does not take)."""

    kind: str
    symbol: str
    why: str
    users: tuple[str, ...]


def files(folder: Path) -> dict[bytes, bytes | None]:
    """The Python files of a package, by paths from the folder that is put on sys.path (raises `ForkError`)."""
    found: dict[bytes, bytes | None] = {}
    for top, names, leaves in os.walk(folder):
        names[:] = sorted(n for n in names if n not in _SKIP and not n.startswith("."))
        if "pyvenv.cfg" in leaves:
            names[:] = []
            continue
        for leaf in sorted(leaves):
            path = Path(top, leaf)
            if leaf.endswith(".py") and path.is_file():
                try:
                    found[os.fsencode(_inside(path, folder))] = path.read_bytes()
                except OSError as e:
                    raise ForkError(f"{path} cannot be read", found=e.strerror or str(e)) from e
    # A vLLM tree inside would stand before the releases that are compared.
    found = {path: data for path, data in found.items() if path.split(b"/")[0] != TOP.encode() and module_of(path)}
    if not found:
        raise ForkError(
            f"{folder} holds no Python module", expected="the source of a package that imports vLLM",
            fix="name its folder: --consumer DIR",
        )  # fmt: skip
    return found


def _inside(path: Path, folder: Path) -> str:
    """The path from the folder above its outermost package."""
    at = path.parent
    while at != folder and (at / "__init__.py").is_file():
        at = at.parent
    return path.relative_to(at).as_posix()


@dataclass(frozen=True)
class Consumer:
    """A package on the release that it was written for."""

    held: Held
    passed: tuple[Passed, ...]
    faults: tuple[str, ...]


def extract(sources: Mapping[bytes, bytes | None], release: Release) -> Consumer:
    """The contracts of a package. A file that does not parse is a fault, and has none."""
    modules = Given(sources, release)
    mine = frozenset(module_of(path) for path in sources)
    ours = Ours(modules, mine)
    trees, faults = {}, []
    for module in sorted(mine):
        try:
            trees[module] = scopes.parse(modules.source(module), where=modules.paths[module].decode(errors="replace"))
        except ForkError as e:
            faults.append(f"{e.message}: {e.found}")
    both = combined(ours, trees)
    ours.selves = {own: Kind(bases[0], True) for own, bases in both.items()}
    noted: list[Use] = []
    for _ in range(_ROUNDS):
        before = {symbol: dict(known) for symbol, known in ours.given.items()}
        ours.passed.clear()
        noted = [use for module, tree in trees.items() for use in uses(ours, module, tree)]
        if before == ours.given:
            break
    noted += [use for own, bases in both.items() for base in bases for use in overrides(ours, own, base)]
    names: dict[Symbol, frozenset[str]] = {}
    for own, bases in both.items():
        for base in bases:
            names[base] = names.get(base, frozenset()) | members(ours, own)
    return Consumer(Held(model.gather(noted), modules, mine, names), tuple(ours.passed), tuple(faults))


def breaks(found: Found, consumer: Consumer) -> tuple[Break, ...]:
    """What does not work any more, worst first."""
    made = [b for d in found.drifts if (b := _gone(d)) is not None]
    places = {d.contract.symbol: d.to for d in found.drifts}
    for one in consumer.passed:
        to = places.get(one.symbol, one.symbol)
        old, new = _callable(found.old, one.symbol), _callable(found.new, to) if to is not None else None
        why = misfit(new, one) if new is not None else ""
        if why and old is not None and not misfit(old, one):
            made.append(Break("call", str(one.symbol), why, (one.user,)))
    made += _overrides(found, consumer)
    order = {kind: i for i, kind in enumerate((*drifts.CLASSES, "call", "override"))}
    return tuple(sorted(set(made), key=lambda b: (order[b.kind], b.symbol, b.users, b.why)))


def _gone(drift: Drift) -> Break | None:
    symbol, users = str(drift.contract), drift.contract.users
    when = next(
        (
            s.version
            for s in reversed(drift.steps)
            if set(s.classes) & {drifts.REMOVED, drifts.IMPORT, drifts.MOVED, drifts.RENAMED}
        ),
        "",
    )
    since = f" since {when}" if when else ""
    if drift.to is None:
        return Break(drifts.REMOVED, symbol, f"upstream has it no more{since}", users)
    if drifts.IMPORT in drift.classes:
        return Break(
            drifts.IMPORT, symbol, f"{', '.join(drift.contract.paths)} is not there{since}; it is {drift.to}", users
        )
    for kind in (drifts.MOVED, drifts.RENAMED):
        if kind in drift.classes:
            return Break(kind, symbol, f"it is {drift.to}{since}", users)
    if drifts.KIND in drift.classes and drift.new is not None:
        return Break(drifts.KIND, symbol, f"a {drift.old.kind} became a {drift.new.kind}", users)
    if "members" in drift.classes and drift.new is not None:
        old = drift.old.facets.get("members", "").split(", ")
        more = [m for m in drift.new.facets.get("members", "").split(", ") if m not in old]
        if more:
            return Break("members", symbol, f"the base has {', '.join(more)} now", users)
    return None


def _callable(release: Modules, symbol: Symbol) -> Function | None:
    """What a call of it calls; None where that cannot be told (a class without an `__init__` of its own)."""
    made = release.definition(symbol)
    if isinstance(made, Class):
        found = release.find(symbol.module, f"{symbol.name}.__init__")
        made = release.definition(found) if found is not None else None
    return made if isinstance(made, Function) else None


def misfit(made: Function, call: Passed) -> str:
    """Why a call does not fit; '' where it does."""
    params = list(made.params)
    static = any(d.endswith("staticmethod") for d in made.decorators)
    if (
        params
        and "." in made.name
        and not static
        and (call.bound or made.name.endswith(".__init__") or "classmethod" in made.decorators)
    ):
        params = params[1:]
    plain = [p for p in params if p.kind in ("positional", "any")]
    kinds = {p.kind for p in params}
    if call.count > len(plain) and "*" not in kinds:
        return f"it takes {len(plain)} positional arguments, {call.count} are passed"
    known = {p.name for p in params if p.kind in ("any", "keyword")}
    unknown = [k for k in call.keywords if k not in known and "**" not in kinds]
    if unknown:
        return f"it takes no {', '.join(unknown)}"
    if call.star:
        return ""
    given = {p.name for p in plain[: call.count]} | set(call.keywords)
    missing = [p.name for p in params if p.kind not in ("*", "**") and not p.default and p.name not in given]
    return f"it wants {', '.join(missing)}" if missing else ""


def _overrides(found: Found, consumer: Consumer) -> Iterator[Break]:
    """Methods of the consumer that upstream's callers call with what they do not take."""
    places = {d.contract.symbol: d.to for d in found.drifts}
    overridden = [(c, places.get(c.symbol, c.symbol)) for c in consumer.held.contracts if model.OVERRIDES in c.roles]
    callers = Callers(found.new, {to.module for _, to in overridden if to is not None})
    for contract, to in overridden:
        base = _callable(found.old, contract.symbol)
        for module, function, call in callers.of(to) if to is not None else ():
            passed = Passed(to, "", len(call.args), tuple(k for k, _ in call.keywords), call.star, True)  # type: ignore[arg-type]
            for user in contract.users:
                own = _own(consumer.held.modules, user)
                why = misfit(own, passed) if own is not None else ""
                # What never fitted is no matter of this release.
                if why and (base is None or misfit(base, passed)):
                    yield Break("override", str(contract), f"{module}:{function.name} calls it: {why}", (user,))


def _own(modules: Given, user: str) -> Function | None:
    path, _, scope = user.partition("::")
    made = modules.definition(Symbol(module_of(path.encode()), scope))
    return made if isinstance(made, Function) else None
