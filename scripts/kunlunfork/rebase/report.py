"""What is asked of a rebase, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kunlunfork.rebase.engine import Run
from kunlunfork.rebase.session import Skip


@dataclass(frozen=True)
class Request:
    """What was asked for. `series` None means that of the fork, `out` None its clone; `start` None its newest pin below
    `onto`. `renames` are old -> new, folders ending with '/'."""

    onto: str
    start: str | None = None
    leap: bool = False
    series: Path | None = None
    out: Path | None = None
    renames: tuple[tuple[str, str], ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Report:
    """How far a rebase is.

    `state` is `done` (the files were written), `whole` (they would be, but this only looked), `stopped` at a conflict,
    or `conflict` (found by one that only looked). `collisions` are files of the overlay that the new release has too.
    """

    state: str
    start: str
    onto: str
    rungs: tuple[str, ...]
    run: Run
    patches: tuple[str, ...]
    skips: tuple[Skip, ...]
    written: tuple[Path, ...] = ()
    work: Path | None = None
    text: Path | None = None
    collisions: tuple[bytes, ...] = ()
    go_on: str = ""

    @property
    def needs_a_person(self) -> bool:
        return self.run.stop is not None or bool(self.collisions)
