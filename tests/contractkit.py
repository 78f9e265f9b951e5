"""The fork's contracts on the real release, and what becomes of them when it is edited."""

from __future__ import annotations

from dataclasses import dataclass

from kunlunfork.contracts.drift import Drift, Found, drift
from kunlunfork.contracts.extract import Held
from kunlunfork.symbols.release import Given, Release


@dataclass(frozen=True)
class Bench:
    """The contracts and their release; `mutated` compares them with the same release but for some edits."""

    held: Held
    release: Release

    def edited(self, *edits: tuple[str, str, str]) -> Given:
        """The release with (module, old text, new text) replaced once each; the old text has to be there once."""
        files: dict[bytes, bytes | None] = {}
        for module, old, new in edits:
            path = self.release.paths[module]
            source = files.get(path) or self.release.source(module)
            assert source is not None and source.count(old.encode()) == 1, (
                module,
                old,
                source and source.count(old.encode()),
            )
            files[path] = source.replace(old.encode(), new.encode())
        return Given(files, self.release)

    def found(self, *edits: tuple[str, str, str]) -> Found:
        return self.against(self.edited(*edits))

    def against(self, release: Given) -> Found:
        return drift(self.held, ("0.25.1", self.release), [("0.25.2", lambda: release)])

    def mutated(self, *edits: tuple[str, str, str]) -> dict[str, Drift]:
        return {str(d.contract): d for d in self.found(*edits).drifts}
