"""How long work tells where it is, without knowing who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

TaskContext = AbstractContextManager[Callable[[int], None]]


class Progress(Protocol):
    """Shown by `console`; silent by default."""

    def note(self, message: str) -> None:
        """One line for the person who waits."""

    def warn(self, message: str) -> None:
        """One line that also goes into the `warnings` of `--json`."""

    def task(self, label: str, total: int | None) -> TaskContext:
        """A bar of `total` units (bytes, files); what it yields is called with the units done so far."""


class Silent:
    """Shows nothing, keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        pass

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    @contextmanager
    def _task(self) -> Iterator[Callable[[int], None]]:
        yield lambda done: None

    def task(self, label: str, total: int | None) -> TaskContext:
        return self._task()
