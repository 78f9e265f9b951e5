"""What lint looks at, and how it says what it found."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from kunlunfork import series
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import Patch, parse_patch
from kunlunfork.paths import Entry
from kunlunfork.preimage import Step, Tree, Upstream

SKIPPED = "skipped"

Overlay = Mapping[bytes, tuple[Entry, bytes, Path]]


@dataclass(frozen=True)
class Finding:
    """One fault of one file; `line` is 1-based where it has a place. With the code `skipped`: a check not made."""

    file: str
    line: int | None
    code: str
    message: str
    fix: str


@dataclass(frozen=True)
class Subject:
    """What is looked at: the folder of a pin's patches, the resolved overlay, and upstream's files (or None)."""

    folder: Path
    overlay: Overlay
    upstream: Upstream | None

    @cached_property
    def scan(self) -> tuple[tuple[series.Name, ...], tuple[series.Problem, ...]]:
        return series.scan(self.folder)

    @cached_property
    def parsed(self) -> Mapping[str, Patch | ForkError]:
        """Each patch of the series, in order, or why it cannot be understood."""
        return {name.name: self._parse(name.name) for name in self.scan[0]}

    def _parse(self, name: str) -> Patch | ForkError:
        try:
            return parse_patch(name, series.read_patch(self.folder, name))
        except ForkError as e:
            return e

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        return tuple(p for p in self.parsed.values() if isinstance(p, Patch))

    @cached_property
    def steps(self) -> Mapping[str, tuple[Step, ...]]:
        """Each patch on the files that upstream and the patches before it leave (needs `upstream`)."""
        assert self.upstream is not None
        tree = Tree(self.upstream)
        return {patch.name: tree.apply(patch) for patch in self.patches}

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def finding(self, patch: Patch, line: int | None, code: str, message: str, fix: str) -> Finding:
        return Finding(self.file(patch.name), line, code, message, fix)


@dataclass(frozen=True)
class Check:
    """One check: its code, what it finds, and whether it needs upstream's files."""

    code: str
    run: Callable[[Subject], Iterator[Finding]]
    needs_upstream: bool = False


@lru_cache(maxsize=4)
def _newlines(raw: bytes) -> list[int]:
    return [match.start() for match in re.finditer(b"\n", raw)]


def line_at(patch: Patch, offset: int) -> int:
    """The line of a byte of the patch file."""
    return bisect_left(_newlines(patch.raw), offset) + 1


def line_of(patch: Patch, field: str) -> int | None:
    """The line of a header field."""
    start = patch.files[0].start
    pattern = re.compile(rb"^%s:" % re.escape(field.encode()), re.IGNORECASE | re.MULTILINE)
    match = pattern.search(patch.raw, 0, start)
    return None if match is None else line_at(patch, match.start())
