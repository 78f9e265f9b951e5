"""What became of the fork's contracts between two releases, and in which one on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kunlunfork.contracts import model, moved
from kunlunfork.contracts.extract import Held
from kunlunfork.contracts.model import Contract, Print
from kunlunfork.contracts.prints import Printer
from kunlunfork.symbols import canon
from kunlunfork.symbols.release import Modules, Symbol

REMOVED, MOVED, RENAMED, KIND, IMPORT = "removed", "moved", "renamed", "kind", "import"
# In the order of a report.
CLASSES = (
    REMOVED, IMPORT, MOVED, RENAMED, KIND, "signature", "default", "types", "decorator", "bases", "members", "body",
    "shapes", "callers", "set by",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What one release did to a contract."""

    version: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Drift:
    """One contract that is not what it was.

    `to` is where it is now, None for nowhere; `old` and `new` are its fingerprints; `steps` the releases that changed
    it, also where a later one took it back.
    """

    contract: Contract
    to: Symbol | None
    classes: tuple[str, ...]
    old: Print
    new: Print | None
    steps: tuple[Step, ...] = ()

    @property
    def key(self) -> str:
        """A fingerprint of what it is now: an acknowledgement holds for this and nothing else."""
        return fingerprint(self.new, self.to)


def fingerprint(found: Print | None, at: Symbol | None) -> str:
    return canon.digest(repr((str(at), None if found is None else (found.kind, sorted(found.facets.items())))))


@dataclass(frozen=True)
class Found:
    """The drift between two pins: `first` and `last` are their versions, `contracts` how many there are in all.
    `returned` are those that releases on the way changed and took back, `absent` those that the first has not."""

    first: str
    last: str
    contracts: int
    drifts: tuple[Drift, ...]
    rungs: tuple[str, ...]
    returned: tuple[Drift, ...]
    absent: tuple[Contract, ...]
    old: Modules = field(compare=False)
    new: Modules = field(compare=False)


@dataclass
class _At:
    symbol: Symbol | None
    print: Print | None


def prints(held: Held, release: Modules) -> dict[Contract, Print | None]:
    """The fingerprints of contracts on their own release; None for a symbol that is not there."""
    printer = Printer(release, held.names, [(c, c.symbol) for c in held.contracts])
    return {c: printer.of(c, c.symbol) for c in held.contracts}


def drift(
    held: Held, first: tuple[str, Modules], rungs: Sequence[tuple[str, Callable[[], Modules]]],
    begin: Mapping[Contract, Print | None] | None = None,
) -> Found:  # fmt: skip
    """Compare the contracts of a pin with what later releases have.

    Args:
        held: the contracts and the names of ours, on the release `first`.
        rungs: the releases after it, oldest first; the last one is what is asked about.
        begin: what `prints` gave for `first`, where that is known.
    """
    contracts = held.contracts
    version, old = first
    begin = prints(held, old) if begin is None else begin
    start = {c: _At(c.symbol, begin[c]) for c in contracts}
    known = {c for c in contracts if start[c].print is not None}
    at = dict(start)
    steps: dict[Contract, list[Step]] = {c: [] for c in contracts}
    before: Modules = old
    now: Modules = old
    for name, load in rungs:
        now = load()
        places = {c: _place(before, now, c, at[c].symbol) for c in known}
        later = Printer(now, held.names, [(c, s) for c, s in places.items() if s is not None])
        for c, symbol in places.items():
            here = _At(symbol, None if symbol is None else later.of(c, symbol))
            if here.print is None:
                here.symbol = None
            changed = classes(c, at[c], here, now)
            if changed:
                steps[c].append(Step(name, changed))
            # What is gone is looked for where it was last.
            at[c] = here if here.symbol is not None else _At(at[c].symbol, None)
        before = now
    drifts: list[Drift] = []
    returned: list[Drift] = []
    for c in contracts:
        if c not in known:
            continue
        end = at[c]
        if end.print is None:
            end = _At(None, None)
        net = classes(c, start[c], end, now)
        made = start[c].print
        if made is not None and steps[c]:
            into = drifts if net else returned
            into.append(Drift(c, end.symbol, net, made, end.print, tuple(steps[c])))
    last = rungs[-1][0] if rungs else version
    absent = tuple(c for c in contracts if c not in known)
    return Found(
        version, last, len(known), tuple(drifts), tuple(name for name, _ in rungs), tuple(returned), absent, old, now
    )


def _place(before: Modules, now: Modules, contract: Contract, symbol: Symbol | None) -> Symbol | None:
    if symbol is None:
        return None
    if not symbol.name:
        return symbol if now.exists(symbol.module) else None
    if now.definition(symbol) is not None:
        return symbol
    owner, _, last = symbol.name.rpartition(".")
    if owner and now.attribute(Symbol(symbol.module, owner), last) is not None:
        return symbol
    for path in contract.paths:
        module, _, name = path.partition(":")
        found = now.find(module, name) if name else None
        if found is not None:
            return found
    if owner and before.definition(symbol) is None:
        # An attribute goes with its class.
        place = _place(before, now, Contract(Symbol(symbol.module, owner), (), ()), Symbol(symbol.module, owner))
        found = now.find(place.module, f"{place.name}.{last}") if place is not None else None
        return found
    found_place = moved.find(before, now, symbol, sorted(_universe(now, symbol)))
    return None if found_place is None else found_place.symbol


def _universe(release: Modules, symbol: Symbol) -> Iterator[str]:
    """The modules around, of the same part of vLLM: `vllm.v1.worker.gpu`, `vllm.v1.sample`."""
    top = ".".join(symbol.module.split(".")[:-1][:4])
    for module in release.paths:
        if module.startswith(f"{top}."):
            yield module


def classes(contract: Contract, was: _At, now: _At, release: Modules) -> tuple[str, ...]:
    """What changed, in the order of `CLASSES`."""
    if was.print is None:
        return ()
    found: set[str] = set()
    if now.print is None or now.symbol is None:
        return (REMOVED,)
    assert was.symbol is not None
    gone = [path for path in contract.paths if not _resolves(release, path)]
    if gone:
        found.add(IMPORT)
    if now.symbol != was.symbol and (
        gone or not contract.paths or set(contract.roles) - {model.IMPORTS, model.USES, model.CALLS}
    ):
        same_name = now.symbol.name.rpartition(".")[2] == was.symbol.name.rpartition(".")[2]
        found.add(MOVED if same_name else RENAMED)
    if now.print.kind != was.print.kind:
        found.add(KIND)
    else:
        found |= {
            k for k in (*was.print.facets, *now.print.facets) if was.print.facets.get(k) != now.print.facets.get(k)
        }
    return tuple(c for c in CLASSES if c in found)


def _resolves(release: Modules, path: str) -> bool:
    module, _, name = path.partition(":")
    return release.find(module, name) is not None if name else release.exists(module)
