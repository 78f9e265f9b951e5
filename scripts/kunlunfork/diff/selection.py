"""Which files a diff is about: areas of `patches/areas.toml`, or paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kunlunfork import areas
from kunlunfork.areas import Area
from kunlunfork.content import Content
from kunlunfork.diff import sites
from kunlunfork.errors import ForkError
from kunlunfork.fork import Fork

ALL = "all"


@dataclass(frozen=True)
class Selection:
    """`also` are files of the fork that belong to an area without lying in it: what implements its sites.

    `whole`: whatever else the fork, or a person, changed anywhere in the tree is meant too.
    """

    name: str
    areas: tuple[Area, ...]
    paths: tuple[bytes, ...]
    also: frozenset[bytes]
    whole: bool

    def has(self, path: bytes) -> bool:
        return (
            path in self.also
            or any(path == p or path.startswith(p + b"/") for p in self.paths)
            or any(area.has(path) for area in self.areas)
        )


def find(content: Content, fork: Fork, words: Sequence[str]) -> Selection:
    """What `words` mean: names of areas, else paths of the tree (a folder is all below it); `all` where there are none.

    Raises:
        ForkError: a word is neither, or leaves the tree.
    """
    known = areas.load(content.patches)
    words = tuple(dict.fromkeys(words)) or (ALL,)
    chosen = [known[word] for word in words if word in known]
    named = [os.fsencode(_path(word, known)) for word in words if word not in known]
    whole = ALL in words
    also = frozenset(fork.touched) if whole else _implementing(fork, chosen)
    return Selection(" ".join(words), tuple(chosen), tuple(named), also, whole)


def check(selection: Selection, *sides: Iterable[bytes]) -> None:
    """Refuse a path that no side has (raises `ForkError`)."""
    there = {path for side in sides for path in side}
    for path in selection.paths:
        if path not in there and not any(other.startswith(path + b"/") for other in there):
            raise ForkError(
                f"{os.fsdecode(path)} lies in none of the trees that are compared",
                expected="an area, or a path from the root of vLLM's tree",
                fix="such as: kunlunfork diff vllm/v1/worker/gpu",
            )


def _path(word: str, known: Iterable[str]) -> str:
    path = os.path.normpath(word)
    if not word or path.startswith(("/", "..")) or path == ".":
        raise ForkError(
            f"{word!r} is no path of vLLM's tree", expected=f"one of {', '.join(known)}, or a path such as vllm/v1",
            fix="name it from the root of the tree: kunlunfork diff vllm/v1/worker/gpu",
        )  # fmt: skip
    return path


def _implementing(fork: Fork, chosen: Sequence[Area]) -> frozenset[bytes]:
    """The overlay's files that implement a site in one of these areas."""
    found = set()
    for site in sites.load(fork):
        if any(area.has(site.path.encode()) for area in chosen):
            names = (f"{sites.KUNLUN}{folder}/{site.impl}.py".encode() for folder, _ in sites.BACKENDS)
            found |= {name for name in names if name in fork.added}
    return frozenset(found)
