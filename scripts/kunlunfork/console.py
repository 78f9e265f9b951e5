"""What a person or a script sees: messages on stderr, one table or one JSON object on stdout."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunlunfork.errors import ForkError
from kunlunfork.progress import TaskContext

if TYPE_CHECKING:
    from kunlunfork.content import Content

SCHEMA = 1
# Seconds between two lines of progress where there is no terminal.
PACE = 30.0
# Before this share of the work is done, nobody knows how long the rest takes.
EARLY = 0.05


class Console:
    """Implements `progress.Progress`. rich is imported only when something is shown on a terminal."""

    def __init__(self, command: str, *, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json
        self.warnings: list[str] = []
        self._content: Content | None = None

    def find_content(self, repo: Path | None) -> Content:
        """The fork's content (raises `ForkError`); the result says which it was, and so does a line where it is not
        what is installed."""
        from kunlunfork import content

        self._content = content.find(repo)
        if not content.is_installed(self._content):
            self.note(f"patches and overlay: {self._content.root}")
        return self._content

    def note(self, message: str) -> None:
        say(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        say(f"warning: {message}")

    def task(self, label: str, total: int | None) -> TaskContext:
        return self._bar(label, total) if sys.stderr.isatty() else self._line(label, total)

    @contextmanager
    def _line(self, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
        self.note(f"{label} ...")
        yield Pace(label, total, self.note)

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
            _show(text)

    def refused(self, result: dict[str, Any], error: ForkError, text: Callable[[], None]) -> None:
        """A command that did its work and found something wrong (lint, verify): the result and the error."""
        if self.as_json:
            self._object(False, result, error)
        else:
            _show(text)

    def failed(self, error: ForkError) -> None:
        if self.as_json:
            self._object(False, None, error)
        say(describe(error))

    def _object(self, ok: bool, result: dict[str, Any] | None, error: ForkError | None) -> None:
        if result is not None and self._content is not None:
            result = {"content": str(self._content.root), **result}
        body = {
            "schema": SCHEMA,
            "command": self.command,
            "ok": ok,
            "result": result,
            "warnings": self.warnings,
            "error": None if error is None else error.as_json(),
        }
        print(json.dumps(body, indent=1), flush=True)


class Pace:
    """Says in a log where long work is, and the time that is left at its pace so far. Called with the units done."""

    def __init__(
        self, label: str, total: int | None, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.total, self._note, self._clock = label, total, note, clock
        self._began = self._told = clock()

    def __call__(self, done: int) -> None:
        now = self._clock()
        if self.total is None or now - self._told < PACE or not 0 < done < self.total:
            return
        self._told = now
        share = done / self.total
        left = (now - self._began) * (1 / share - 1)
        # The first units say little: what all of them need is often made with these.
        self._note(f"{self.label}: {share:.0%}" + (f", about {duration(left)} left" if share >= EARLY else ""))


def duration(seconds: float) -> str:
    """For people: `40 s`, `7 min`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def printable(text: str) -> str:
    """Text of several lines without what would steer a terminal: a tree may have any name."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def say(message: str) -> None:
    """One message on stderr."""
    with suppress(OSError):  # nobody can be told, and work under way must not stop half done for that
        print(printable(message), file=sys.stderr, flush=True)


def _show(text: Callable[[], None]) -> None:
    with io.StringIO() as lines:
        with redirect_stdout(lines):
            text()
        print(printable(lines.getvalue()), end="", flush=True)


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
