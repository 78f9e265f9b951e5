"""The file of results: JSON lines, written as the cells end, so that a killed run keeps them.

Line kinds of version 2: `head` (what the run tests, where and how), `tier` (how many cells it means to run), `cell`.
A file may hold several runs, one after another. In version 1 each cell line carried all that its head says now;
such files are read, too. Lines of ci/results/matrix.jsonl are sums of whole runs (`records`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.matrix import records, resultlines
from kunlunfork.matrix.cells import Cell, Run, replay
from kunlunfork.matrix.records import Record

SCHEMA = 2
# Longer lines are no results; a file of zeros is not read into memory.
LIMIT = 1 << 20


# What a tier may count beforehand.
CELLS, LAUNCHERS = "cells", "launchers"


class Writer:
    """Writes a run to a file, a line at a time. Every `OSError` becomes a `ForkError` that names the file."""

    def __init__(self, path: Path, *, append: bool) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what was written is in the file, however the process ends.
            self._file = path.open("ab", buffering=0)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_file():
                    self._file.truncate(_whole(path) if append else 0)
            except BaseException:
                self._file.close()
                raise
        except BlockingIOError as e:
            raise ForkError(
                f"another run writes its results to {path}", expected="a file for each run",
                fix="wait for it, or name another file: --results",
            ) from e  # fmt: skip
        except OSError as e:
            raise self._error(e) from e

    def head(self, run: Run) -> None:
        self._line({"kind": "head", "schema": SCHEMA, **asdict(replace(run, tier="")), "tier": None})

    def tier(self, tier: str, count: int, of: str = CELLS) -> None:
        """`count`: how many of this tier will follow: cells, or launchers, where nobody knows the cells beforehand."""
        self._line({"kind": "tier", "tier": tier, "cells": count, **({} if of == CELLS else {"of": of})})

    def cell(self, cell: Cell) -> None:
        flat = {f.name: getattr(cell, f.name) for f in fields(cell) if f.name != "run"}
        if cell.bad and cell.replay is None:
            flat["replay"] = replay(cell)
        self._line({"kind": "cell", "tier": cell.run.tier, **flat})

    def _line(self, line: dict[str, Any]) -> None:
        self.raw((json.dumps(line) + "\n").encode())

    def raw(self, data: bytes) -> None:
        """Whole lines of another file of results."""
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as e:
            raise self._error(e) from e

    def _error(self, e: OSError) -> ForkError:
        return ForkError(
            f"{self.path} cannot be written", found=e.strerror or str(e),
            fix="make space, or name another file: --results",
        )  # fmt: skip

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, t: TracebackType | None) -> None:
        self._file.close()


def _whole(path: Path) -> int:
    """The size of a file without half a line that a killed run left at its end."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - LIMIT))
        last = file.read()
    return end - len(last) + last.rfind(b"\n") + 1


@dataclass(frozen=True)
class Planned:
    """A tier that a run began: `cells` as it meant to run, `ended` as there are. `of`: what is counted, cells, or the
    launchers of the cells (of the tier `upstream`: files)."""

    run: Run
    source: str
    cells: int
    ended: int
    of: str = CELLS


@dataclass(frozen=True)
class Loaded:
    """What files hold. `planned`: of version 2. `notes`: what a reader should know of the files."""

    cells: tuple[Cell, ...]
    planned: tuple[Planned, ...] = ()
    notes: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()


def load(paths: Sequence[Path]) -> Loaded:
    """Read files of results.

    Half a line at the end of a file, as a killed run leaves it, is noted and dropped.

    Raises:
        ForkError: a file cannot be read, is of a version that this tool does not know, or has a line that is no
            result; names file and line.
    """
    cells: list[Cell] = []
    planned: list[Planned] = []
    notes: list[str] = []
    summed: list[Record] = []
    for path in dict.fromkeys(paths):
        reader = _Reader(path)
        reader.read()
        cells += reader.cells
        planned += reader.planned
        notes += reader.notes
        summed += reader.records
    return Loaded(tuple(cells), tuple(planned), tuple(notes), tuple(summed))


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: list[Cell] = []
        self.planned: list[Planned] = []
        self.notes: list[str] = []
        self.records: list[Record] = []
        self._head: Run | None = None
        # Head -> tier -> its run, and the place in `planned` or -1. Runs may take turns: a head then comes again.
        self._runs: dict[str, dict[str, tuple[Run, int]]] = {}
        self._tiers: dict[str, tuple[Run, int]] = {}
        self._old: dict[str, Run] = {}
        self._launchers: dict[int, set[str]] = {}

    def read(self) -> None:
        for number, data, whole in self._lines():
            if not data.strip():
                continue
            try:
                raw = json.loads(data.decode())
                if not isinstance(raw, dict):
                    raise ValueError("not an object")
                self._take(raw)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
                # Of a run, that is: what never was a file of results is none, and nobody may cut it.
                if not whole and (self.cells or self.records or self._head):
                    self.notes.append(f"{self.path}:{number}: half a line at the end, dropped")
                    return
                found = f"no {e}" if isinstance(e, KeyError) else str(e)
                raise ForkError(
                    f"{self.path}:{number} is not a line of results", found=found[:200],
                    expected="a file that `kunlunfork matrix run --results FILE` wrote",
                ) from e  # fmt: skip

    def _lines(self) -> Iterator[tuple[int, bytes, bool]]:
        try:
            with self.path.open("rb") as file:
                number = 0
                while data := file.readline(LIMIT + 1):
                    number += 1
                    if len(data) > LIMIT:
                        raise ForkError(
                            f"{self.path}:{number} is not a line of results", found=f"more than {LIMIT} bytes in a line"
                        )
                    yield number, data, data.endswith(b"\n")
        except OSError as e:
            raise ForkError(f"{self.path} cannot be read", found=e.strerror or str(e)) from e

    def _take(self, raw: dict[str, Any]) -> None:
        kind, schema = raw.get("kind"), raw.get("schema")
        if kind is None and raw.get("what") == records.WHAT:
            self.records.append(records.parse(raw))
            return
        if (kind is None or kind == "head") and schema is not None and schema not in (1, SCHEMA):
            raise ForkError(
                f"{self.path} was written by another version of this tool", found=f"schema {schema!r}"[:100],
                expected=f"schema 1 or {SCHEMA}", fix="read it with the version that wrote it, or a newer one",
            )  # fmt: skip
        if kind is None and schema == 1:
            self._take_old(raw)
        elif kind == "head":
            self._head = resultlines.run({**raw, "tier": ""})
            self._tiers = self._runs.setdefault(repr(self._head), {})
        elif self._head is None:
            raise ValueError("no head before it")
        elif kind == "tier":
            tier, count, of = resultlines.tier(raw)
            run = replace(self._head, tier=tier)
            self._tiers[tier] = run, len(self.planned)
            self.planned.append(Planned(run, str(self.path), count, 0, of))
        elif kind == "cell":
            tier = resultlines.text(raw, "tier")
            run, place = self._tiers.setdefault(tier, (replace(self._head, tier=tier), -1))
            self.cells.append(resultlines.cell(raw, run))
            if place >= 0:
                self._count(place, self.cells[-1].launcher)
        else:
            raise ValueError(f"kind {kind!r}"[:100])

    def _count(self, place: int, launcher: str) -> None:
        planned, seen = self.planned[place], self._launchers.setdefault(place, set())
        if planned.of == CELLS or launcher not in seen:
            self.planned[place] = replace(planned, ended=planned.ended + 1)
        seen.add(launcher)

    def _take_old(self, raw: dict[str, Any]) -> None:
        run = resultlines.run(raw)
        # One object for all cells of a run.
        self.cells.append(resultlines.cell(raw, self._old.setdefault(repr(run), run)))
