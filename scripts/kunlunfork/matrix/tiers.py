"""The tiers of the matrix: where each has its tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kunlunfork.content import Content
from kunlunfork.errors import ForkError


@dataclass(frozen=True)
class Tier:
    """One tier. `folder`: of its tests, below the parity tests; `cases`: a pattern below that, of what makes them;
    `ignore`: folders that belong to another tier."""

    name: str
    folder: str
    cases: str
    ignore: tuple[str, ...] = ()

    def tests(self, content: Content) -> Path:
        """The folder of the tests.

        Raises:
            ForkError: there is nothing that makes any.
        """
        folder = content.parity / self.folder
        if not any(folder.glob(self.cases)):
            raise ForkError(f"{folder} holds no parity tests", expected=self.cases)
        return folder

    def arguments(self, content: Content) -> list[str]:
        """pytest's, beside the folder."""
        return [f"--ignore={content.parity / self.folder / name}" for name in self.ignore]


OPS = Tier("ops", ".", "sites/[!_]*.py", ignore=("step",))
STEP = Tier("step", "step", "scenarios/*.json")
TIERS = {tier.name: tier for tier in (OPS, STEP)}
