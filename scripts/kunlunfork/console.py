"""What a person or a script sees: messages on stderr, one table or one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.progress import TaskContext

SCHEMA = 1


class Console:
    """Implements `progress.Progress`. rich is imported only when something is shown on a terminal."""

    def __init__(self, command: str, *, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        print(f"warning: {message}", file=sys.stderr, flush=True)

    def task(self, label: str, total: int | None) -> TaskContext:
        return self._bar(label, total) if sys.stderr.isatty() else self._line(label)

    @contextmanager
    def _line(self, label: str) -> Iterator[Callable[[int], None]]:
        self.note(f"{label} ...")
        yield lambda done: None

    @contextmanager
    def _bar(self, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
        from rich.console import Console as Terminal
        from rich.progress import Progress as Bar

        with Bar(console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.update(task, completed=done)

    def result(self, result: dict[str, Any], text: Callable[[], None]) -> None:
        """The outcome of a command that did its work: JSON, or what `text` prints."""
        if self.as_json:
            self._object(True, result, None)
        else:
            text()

    def refused(self, result: dict[str, Any], error: ForkError, text: Callable[[], None]) -> None:
        """A command that did its work and found something wrong (lint, verify): the result and the error."""
        if self.as_json:
            self._object(False, result, error)
        else:
            text()

    def failed(self, error: ForkError) -> None:
        if self.as_json:
            self._object(False, None, error)
        print(describe(error), file=sys.stderr, flush=True)

    def _object(self, ok: bool, result: dict[str, Any] | None, error: ForkError | None) -> None:
        body = {
            "schema": SCHEMA,
            "command": self.command,
            "ok": ok,
            "result": result,
            "warnings": self.warnings,
            "error": None if error is None else error.as_json(),
        }
        print(json.dumps(body, indent=1), flush=True)


def describe(error: ForkError, limit: int = 20) -> str:
    """An error for people: what, found, expected, the list, and the command that mends it."""
    lines = [f"error: {error.message}"]
    lines += [f"  {line}" for line in error.details[:limit]]
    if len(error.details) > limit:
        lines.append(f"  ... and {len(error.details) - limit} more (--json has them all)")
    lines += [f"  {name}: {value}" for name, value in (("found", error.found), ("expected", error.expected)) if value]
    if error.fix:
        lines.append(f"  fix: {error.fix}")
    return "\n".join(lines)


def rows(pairs: Sequence[tuple[str, str]]) -> None:
    """Print name-value pairs, aligned."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """Print a table; plain columns, so that it can be cut and searched."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    for row in (head, *body):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
