"""The trees that are compared: a release, the fork on it, and perhaps a newer release. In memory, from the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kunlunfork import fork as forks
from kunlunfork import paths, pins, target
from kunlunfork.content import Content
from kunlunfork.diff import selection
from kunlunfork.diff.selection import Selection
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork
from kunlunfork.objects import scratch
from kunlunfork.paths import SYMLINK, Entry
from kunlunfork.rebase import resolutions, start
from kunlunfork.rebase.carry import Change
from kunlunfork.rebase.engine import Rung
from kunlunfork.rebase.ladder import Releases
from kunlunfork.rebase.resolutions import Key, Remembered
from kunlunfork.rebase.treestore import Effect, TreeStore
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store
from kunlunfork.target import Target

# Byte for byte; and git says above each hunk which function it lies in.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n*.py diff=python\n"
# What a build leaves in a tree.
_BUILT = (b".so", b".pyd", b".dylib", b".a", b".o")
_VERSION = b"vllm/_version.py"


@dataclass(frozen=True)
class Request:
    """`version` is the pin (None: the tree's own, else the newest), `against` a newer release, `tree` a fork tree."""

    words: tuple[str, ...]
    version: str | None = None
    against: str | None = None
    tree: Path | None = None


@dataclass(frozen=True)
class Sides:
    """Trees of `store`, by id.

    `base` is the pin's release, `made` the fork on it, `shown` what is compared with `base`: `made`, or a tree with
    local edits. `patches` are the series, step by step. `against` is (version, tree) of a newer release, `rungs` are
    the releases up to it. `known` are the resolutions of conflicts that the clone remembers.
    """

    store: TreeStore
    fork: Fork
    selection: Selection
    base: str
    made: str
    shown: str
    patches: tuple[Change, ...]
    against: tuple[str, str] | None
    root: Path | None
    rungs: tuple[Rung, ...] = ()
    known: Mapping[Key, Remembered] = field(default_factory=dict)

    def ours(self) -> Effect:
        """What the fork (or the tree) changes in the files that are meant."""
        found = self.store.effect(self.base, self.shown)
        return found if self.selection.whole else self._meant(found)

    def theirs(self) -> Effect:
        """What the newer release changes in them; nothing where none is named."""
        return {} if self.against is None else self._meant(self.store.effect(self.base, self.against[1]))

    def _meant(self, found: Effect) -> Effect:
        return {path: pair for path, pair in found.items() if self.selection.has(path)}


@contextlib.contextmanager
def opened(content: Content, store: Store, settings: Settings, request: Request) -> Iterator[Sides]:
    """The sides of a diff, for the length of a block.

    Raises:
        ForkError: no such pin, release, area, path or tree; the fork does not fit its release.
    """
    found = None if request.tree is None else target.of_tree(request.tree)
    fork = forks.load(content, _version(content, request.version, found))
    chosen = selection.find(content, fork, request.words)
    releases = Releases(content, store, settings)
    base = releases.base(fork.pin.version).tree
    rungs: tuple[Rung, ...] = ()
    if request.against is not None:
        if _all_stored(content, store, fork.pin.version, request.against):
            # The index takes longer to ask than all the rest.
            releases = Releases(content, store, replace(settings, offline=True))
        rungs = _rungs(releases, fork.pin.version, request.against)
    against = (rungs[-1].version, rungs[-1].tree) if rungs else None
    with scratch(store.path / "objects", _ATTRIBUTES) as repository, TreeStore(repository) as trees:
        patches = start.changes(trees, base, fork.pin, fork.patches)
        taken = [paths.show(p) for p in fork.added if trees.is_taken(base, p)]
        if taken:
            raise ForkError(
                f"the overlay ships files that vLLM {fork.pin.version} has too", details=taken, fix="kunlunfork lint"
            )
        for path, (_, data) in fork.added.items():
            # The others are named in the tree, and nobody reads them.
            if chosen.whole or chosen.has(path):
                trees.put(data)
        made = trees.replace(patches[-1].after if patches else base, {p: e for p, (e, _) in fork.added.items()})
        shown = made if found is None else _of_folder(trees, base, fork, found, chosen)
        if chosen.paths:
            every = (tree for tree in (base, made, shown, against and against[1]) if tree)
            selection.check(chosen, *((path for path, _ in trees.files(tree)) for tree in dict.fromkeys(every)))
        root = None if found is None else found.root
        known = resolutions.load(content.root) if rungs else {}
        yield Sides(trees, fork, chosen, base, made, shown, patches, against, root, rungs, known)


def _version(content: Content, asked: str | None, found: Target | None) -> str:
    own = None if found is None or found.info.version is None else pins.public(found.info.version)
    if asked is None:
        return own or content.newest()
    wanted = content.pin(asked).version
    if found is not None and own is not None and pins.parse_version(own) != pins.parse_version(wanted):
        raise ForkError(
            f"{found.root} is another release", found=f"vLLM {own}", expected=f"vLLM {wanted}",
            fix="leave --vllm out, or name a tree of that release",
        )  # fmt: skip
    return wanted


def _all_stored(content: Content, store: Store, pin: str, asked: str) -> bool:
    """Whether the store has the release that was asked for, and one of each minor version on the way."""
    first, last = (pins.parse_version(text) for text in (pin, asked))
    names = {*(base.version for base in store.bases() if base.kind == "sdist"), *content.versions()}
    known = [pins.parse_version(name) for name in names]
    minors = {version.minor for version in known if version.major == last.major and version <= last}
    return last in known and first.major == last.major and minors.issuperset(range(first.minor + 1, last.minor))


def _rungs(releases: Releases, pin: str, asked: str) -> tuple[Rung, ...]:
    """The releases from the pin's to the one that was asked for, each imported if need be."""
    if pins.parse_version(asked) <= pins.parse_version(pin):
        raise ForkError(
            f"vLLM {asked} is not newer than the pin", found=f"{pin} and {asked}", expected=f"a release after {pin}"
        )
    found = []
    for version in releases.between(pin, releases.canonical(asked)):
        known = releases.pin(version)
        renames = {} if known is None else {paths.from_text(a): paths.from_text(b) for a, b in known.renames}
        found.append(Rung(version, releases.base(version).tree, renames))
    return tuple(found)


def _of_folder(store: TreeStore, base: str, fork: Fork, found: Target, chosen: Selection) -> str:
    """The tree that a folder makes, as far as it is meant; what is not there in an installed one was never there."""
    installed = found.info.layout == "installed"
    released = dict(store.files(base))
    known = {*released, *fork.added}
    names = {path for path in known if chosen.whole or chosen.has(path)}
    new = (p for p in paths.walk(found.root, "vllm") if p not in known and (chosen.whole or chosen.has(p)))
    recorded = _recorded(found) if installed else frozenset()
    names |= {path for path in new if not path.endswith(_BUILT) and path not in recorded}
    if installed:
        names.discard(_VERSION)  # has the label of the build
    changed: dict[bytes, Entry | None] = {}
    for path in sorted(names):
        was = released.get(path)
        now = paths.read_entry(found.root, path)
        if now is None:
            if was is not None and not _never_there(path, installed, found):
                changed[path] = None
            continue
        entry, data = _through_link(fork, path, *now)
        if installed and was is not None and SYMLINK not in (was.mode, entry.mode):
            entry = Entry(was.mode, entry.blob)  # an installer sets its own
        if entry != was:
            store.put(data)
            changed[path] = entry
    return store.replace(base, changed)


def _never_there(path: bytes, installed: bool, found: Target) -> bool:
    """Whether a file of the sdist is none of such a tree: a wheel has `vllm/` alone, a checkout no version file."""
    if installed:
        return not (path.startswith(b"vllm/") and path.endswith(b".py"))
    return found.info.kind == "checkout" and path in (b"PKG-INFO", _VERSION)


def _through_link(fork: Fork, path: bytes, entry: Entry, data: bytes) -> tuple[Entry, bytes]:
    """A file of `apply --link` is the file of the clone that it leads to."""
    file = fork.overlay.files.get(path)
    if entry.mode == SYMLINK and file is not None and data == os.fsencode(file.source.absolute()):
        return file.entry, file.data
    if entry.mode == SYMLINK:
        try:
            paths.check_symlink(path, data, where="the tree")
        except ForkError as e:
            fix = (
                "put a file in its place"
                if file is None
                else "stand in the clone that it leads to, or name it: --repo DIR"
            )
            raise ForkError(e.message, found=e.found, expected=e.expected, fix=fix) from e
    return entry, data


def _recorded(found: Target) -> frozenset[bytes]:
    """Files of the distribution itself that no sdist has (compiled, generated)."""
    from kunlunfork.record import read_record

    assert found.info.dist_info is not None
    try:
        return frozenset(read_record(paths.read_plain(found.info.dist_info / "RECORD")))
    except OSError as e:
        raise ForkError(f"{found.info.dist_info / 'RECORD'} cannot be read", found=e.strerror or str(e)) from e
