"""A drift from what a person asked for to what is shown; and what is written of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from kunlunfork import areas, fork, pins
from kunlunfork.areas import Area
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.contracts import cards, cover, drift, pinfile
from kunlunfork.contracts import consumer as consumers
from kunlunfork.contracts.cards import Card
from kunlunfork.contracts.cover import Evidence
from kunlunfork.contracts.drift import Drift, Found
from kunlunfork.contracts.extract import Held, extract
from kunlunfork.contracts.pinfile import Ack, PinFile
from kunlunfork.contracts.prints import Printer
from kunlunfork.diff import sites
from kunlunfork.errors import ForkError
from kunlunfork.rebase import target
from kunlunfork.rebase.ladder import Releases
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store
from kunlunfork.symbols.kept import Kept
from kunlunfork.symbols.release import Release


@dataclass(frozen=True)
class Report:
    """What drifted from `first` to `last` in these areas, all where there are none. `rungs` are the releases on the
    way; `contracts` is how many contracts there are."""

    first: str
    last: str
    rungs: tuple[str, ...]
    contracts: int
    cards: tuple[Card, ...]
    areas: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[Card, ...]:
        """Those that nothing vouches for."""
        return tuple(card for card in self.cards if not card.covered)


@dataclass
class Workshop:
    """Where releases and forks come from; each is opened once."""

    content: Content
    store: Store
    settings: Settings
    _releases: dict[str, Release] = field(default_factory=dict)
    _held: dict[str, Held] = field(default_factory=dict)

    @property
    def _kept(self) -> Kept:
        cache: Cache = self.settings.cache
        return Kept(cache.root)

    def ladder(self) -> Releases:
        return Releases(self.content, self.store, self.settings)

    def quick_ladder(self, *versions: str) -> Releases:
        """One that does not ask the index, where these releases are in the store."""
        stored = {Version(base.version) for base in self.store.bases() if base.kind == "sdist"}
        wanted = {pins.parse_version(v) for v in versions if not v.startswith(target.GIT)}
        # Which release comes before a commit is not known yet.
        ready = wanted <= stored and not any(v.startswith(target.GIT) for v in versions)
        if not self.settings.offline and ready:
            from dataclasses import replace

            return Releases(self.content, self.store, replace(self.settings, offline=True))
        return self.ladder()

    def release(self, version: str, tree: str) -> Release:
        if tree not in self._releases:
            self._releases[tree] = Release(self.store, tree, self._kept, version)
        return self._releases[tree]

    def held(self, version: str) -> tuple[Held, Release]:
        """The contracts of a pin, and its release."""
        pin = self.content.pin(version)
        tree = self.quick_ladder(pin.version).base(pin.version).tree
        release = self.release(pin.version, tree)
        if pin.version not in self._held:
            self._held[pin.version] = extract(fork.load(self.content, pin.version), release)
        return self._held[pin.version], release


def find(shop: Workshop, start: str | None, onto: str, names: Sequence[str] = ()) -> Report:
    """What drifted (raises `ForkError`).

    Args:
        start: a pin; the newest one below `onto` where it is None.
        onto: a release, or `git:PATH@REV`.
        names: areas.
    """
    wanted = areas.find(shop.content.patches, names)
    found = compare(shop, start, onto)
    evidence = evidence_of(shop, found)
    made = tuple(
        cards.card(found, one, cover.cover(one, evidence)) for one in found.drifts if _inside(found, one, wanted)
    )
    order = sorted(made, key=lambda card: (bool(card.covered), _rank(card.drift)))
    return Report(found.first, found.last, found.rungs, found.contracts, tuple(order), tuple(a.name for a in wanted))


def _rank(found: Drift) -> tuple[int, str]:
    return drift.CLASSES.index(found.classes[0]), str(found.contract)


def _inside(found: Found, one: Drift, wanted: Sequence[Area]) -> bool:
    paths = [found.old.paths.get(one.contract.symbol.module)]
    paths += [found.new.paths.get(one.to.module)] if one.to is not None else []
    return not wanted or any(path is not None and area.has(path) for area in wanted for path in paths)


def compare(shop: Workshop, start: str | None, onto: str) -> Found:
    """The drift itself, nothing vouched for."""
    ladder = shop.quick_ladder(*([start] if start else []), onto)
    goal = target.find(onto, ladder, shop.store)
    begin = _start(shop.content, start, goal.last or goal.version)
    held, first = shop.held(begin)
    return drift.drift(held, (begin, first), _rungs(shop, ladder, begin, onto))


def _rungs(shop: Workshop, ladder: Releases, begin: str, onto: str) -> list[tuple[str, Callable[[], Release]]]:
    goal = target.find(onto, ladder, shop.store)
    rungs: list[tuple[str, Callable[[], Release]]] = []
    last = goal.version if goal.is_release else goal.last and ladder.canonical(goal.last)
    for version in ladder.between(begin, last) if last is not None and Version(last) > Version(begin) else ():
        rungs.append((version, _loader(shop, ladder, version)))
    if goal.tree is not None:
        tree, name = goal.tree, goal.version
        rungs.append((name, lambda: shop.release(name, tree)))
    if not rungs:
        ladder.between(begin, goal.version)  # says that it is not newer
    return rungs


def _loader(shop: Workshop, ladder: Releases, version: str) -> Callable[[], Release]:
    return lambda: shop.release(version, ladder.base(version).tree)


def _start(content: Content, start: str | None, below: str) -> str:
    if start is not None:
        return content.pin(start).version
    try:
        older = [v for v in content.versions() if Version(v) < Version(below)]
    except ValueError:
        older = list(content.versions())
    if not older:
        raise ForkError(
            f"the fork has no pin below vLLM {below}", found=f"pins: {', '.join(content.versions())}",
            expected="an older one to compare with", fix="see: kunlunfork pins",
        )  # fmt: skip
    return older[-1]


def evidence_of(shop: Workshop, found: Found) -> Evidence:
    """What vouches for drifted contracts: the acknowledgements beside the new pin, and the fork of that pin."""
    folder = shop.content.patches / found.last
    acks = pinfile.load(folder)
    old = fork.load(shop.content, found.first)
    numbers = cover.ids(sites.load(old))
    if found.last not in shop.content.versions():
        return Evidence(None, (), acks, numbers)
    new = fork.load(shop.content, found.last)
    held, _ = shop.held(found.last)
    symbols = frozenset(str(c) for c in held.contracts)
    records = cover.read(shop.content.root, found.last, new.series_hash, new.overlay_hash)
    return Evidence(symbols, records, acks, numbers)


def consumer(shop: Workshop, folder: Path, start: str, onto: str) -> tuple[Found, consumers.Consumer]:
    """What drifted of the contracts of another package (raises `ForkError`).

    Args:
        folder: its source.
        start: the release that it was written for; no pin is needed.
        onto: as for `find`.
    """
    sources = consumers.files(folder)
    ladder = shop.quick_ladder(start, onto)
    begin = ladder.canonical(start)
    first = shop.release(begin, ladder.base(begin).tree)
    made = consumers.extract(sources, first)
    return drift.drift(made.held, (begin, first), _rungs(shop, ladder, begin, onto)), made


def acknowledge(shop: Workshop, start: str | None, onto: str, symbol: str, why: str) -> tuple[Path, Drift]:
    """Note that somebody looked at one contract (raises `ForkError` where it did not drift)."""
    found = compare(shop, start, onto)
    one = next((d for d in found.drifts if symbol in (str(d.contract), str(d.to))), None)
    if one is None:
        near = [
            str(d.contract) for d in found.drifts if symbol.rpartition(":")[2].rpartition(".")[2] in str(d.contract)
        ]
        raise ForkError(
            f"{symbol} did not drift from {found.first} to {found.last}", found=f"{len(found.drifts)} others that did",
            expected="a symbol as drift shows it, module:name", details=near[:10],
            fix=f"see: kunlunfork drift --from {found.first} --to {found.last}",
        )  # fmt: skip
    folder = shop.content.patches / found.last
    file = pinfile.load(folder).acknowledged(str(one.contract), Ack(one.key, found.first, why))
    return pinfile.save(folder, file), one


def contracts_of(shop: Workshop, version: str) -> PinFile:
    """What `contracts.json` of a pin must say, its acknowledgements as they are."""
    held, release = shop.held(version)
    printer = Printer(release, held.names, [(c, c.symbol) for c in held.contracts])
    rows: Mapping[str, Mapping[str, object]] = {
        str(c): pinfile.row(c, made) for c in held.contracts if (made := printer.of(c, c.symbol)) is not None
    }
    return PinFile(rows, pinfile.load(shop.content.patches / shop.content.pin(version).version).acks)
