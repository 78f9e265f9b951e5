"""Lines of results that come from several machines at once, as one file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kunlunfork.errors import ForkError
from kunlunfork.matrix.results import LAUNCHERS, Writer


@dataclass
class _Shard:
    head: bytes = b""
    # What has come, for a machine that goes on where this one was lost.
    lines: list[bytes] = field(default_factory=list)
    tiers: int = 0
    planned: int = 0
    ended: int = 0
    # Of tiers that plan launchers: those that have come.
    launchers: dict[str, set[str]] = field(default_factory=dict)


class Gather:
    """Writes what comes to a file, each line below the head of its run.

    series, overlay: hashes of the fork that is meant; results of another are refused.
    """

    def __init__(self, writer: Writer, pin: str, series: str, overlay: str) -> None:
        self._writer = writer
        self._wanted = {"pin": pin, "series": series, "overlay": overlay}
        self._shards: dict[str, _Shard] = {}
        self._last = b""

    @property
    def ended(self) -> int:
        return sum(shard.ended for shard in self._shards.values())

    @property
    def planned(self) -> int:
        return sum(shard.planned for shard in self._shards.values())

    def take(self, name: str, data: bytes) -> None:
        """Whole lines of the file of results of the shard `name`.

        Raises:
            ForkError: they are no results, or of another fork; or they cannot be written.
        """
        shard = self._shards.setdefault(name, _Shard())
        for line in data.splitlines(keepends=True):
            try:
                raw: dict[str, Any] = json.loads(line)
                kind = raw["kind"]
                if kind == "head":
                    self._check(name, raw)
                    shard.head, shard.tiers, shard.planned, shard.ended = line, 0, 0, 0
                    shard.launchers = {}
                elif kind == "tier":
                    shard.tiers += 1
                    shard.planned += raw["cells"]
                    if raw.get("of") == LAUNCHERS:
                        shard.launchers[raw["tier"]] = set()
                else:
                    seen = shard.launchers.get(raw["tier"])
                    shard.ended += seen is None or raw["launcher"] not in seen
                    if seen is not None:
                        seen.add(raw["launcher"])
            except (ValueError, KeyError, TypeError) as e:
                raise ForkError(f"shard {name} sent what is no result", found=repr(line[:100])) from e
            shard.lines.append(line)
            if kind == "head":
                continue  # written before what comes below it
            if shard.head != self._last:
                self._writer.raw(shard.head)
                self._last = shard.head
            self._writer.raw(line)

    def before(self, name: str) -> bytes:
        """What has come of a shard, as a file to go on with."""
        shard = self._shards.get(name)
        return b"".join(shard.lines) if shard else b""

    def whole(self, name: str, tiers: int) -> bool:
        """Whether the last run of a shard has brought all the cells that it meant to run, of so many tiers."""
        shard = self._shards.get(name)
        return shard is not None and shard.tiers == tiers and shard.ended >= shard.planned

    def _check(self, name: str, raw: dict[str, Any]) -> None:
        for field_, wanted in self._wanted.items():
            if raw[field_] != wanted:
                raise ForkError(
                    f"the machine of shard {name} has another fork than this one",
                    found=f"{field_} {raw[field_]!r:.80}", expected=f"{field_} {wanted[:80]!r}",
                    fix="install the same version of this tool on every node, or share the clone at the same path",
                )  # fmt: skip
