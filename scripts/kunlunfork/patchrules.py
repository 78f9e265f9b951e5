"""What a patch must be beyond what git would take: lint reports it, and nothing else is applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kunlunfork.patchfile import Patch
from kunlunfork.patchlines import REMAKE
from kunlunfork.paths import show


@dataclass(frozen=True)
class Fault:
    """A rule that one section breaks; `line` of the patch file is where that section starts."""

    line: int
    code: str
    message: str
    fix: str


def faults(patch: Patch) -> Iterator[Fault]:
    """Abbreviated blob ids, and files that have two sections."""
    seen: set[tuple[str, bytes]] = set()
    for file in patch.files:
        line = patch.raw.count(b"\n", 0, file.start) + 1
        name = show(file.new_path or file.old_path or b"")
        short = [blob for blob in (file.old_blob, file.new_blob) if blob is not None and len(blob) != 40]
        if short:
            message = f"{name}: blob id {short[0]} has {len(short[0])} digits; only 40 name one file for sure"
            yield Fault(line, "ids", message, REMAKE)
        # A link that becomes a file is deleted and added, and a copy leaves its source to others.
        both = (("new", file.new_path), ("old", None if file.kind == "copy" else file.old_path))
        sides = [(side, path) for side, path in both if path is not None]
        if seen.intersection(sides):
            message = f"{name} has a second section: what it starts from is no file of any release"
            yield Fault(line, "twice", message, "make one section of them, or two patches; " + REMAKE)
        seen.update(sides)
