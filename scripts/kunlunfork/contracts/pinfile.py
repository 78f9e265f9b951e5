"""`patches/<version>/contracts.json`: the fingerprints of what the fork relies on at a pin, and what a person said of
those that drifted on the way to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kunlunfork.contracts.model import Contract, Print
from kunlunfork.errors import ForkError
from kunlunfork.symbols import canon

NAME = "contracts.json"
SCHEMA = 1


@dataclass(frozen=True)
class Ack:
    """Somebody looked at what became of a contract. `key` is the fingerprint of what they looked at (`Drift.key`):
    it says nothing of another."""

    key: str
    start: str
    why: str


@dataclass(frozen=True)
class PinFile:
    """`contracts` are symbol -> its roles, kind and a fingerprint of each facet."""

    contracts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    acks: Mapping[str, Ack] = field(default_factory=dict)

    def dump(self) -> bytes:
        """One line a contract, so that a change of one is a line of git's."""
        lines = ["{", f'"schema": {SCHEMA},', '"acks": {']
        lines += _rows({name: {"key": a.key, "from": a.start, "why": a.why} for name, a in self.acks.items()})
        lines += ["},", '"contracts": {', *_rows(self.contracts), "}", "}"]
        return ("\n".join(lines) + "\n").encode()

    def acknowledged(self, symbol: str, ack: Ack) -> PinFile:
        return replace(self, acks={**self.acks, symbol: ack})


def _rows(table: Mapping[str, Any]) -> list[str]:
    rows = [
        f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True, ensure_ascii=False)}" for name in sorted(table)
    ]
    return [f"{row}," for row in rows[:-1]] + rows[-1:]


def row(contract: Contract, found: Print) -> dict[str, Any]:
    return {
        "roles": list(contract.roles),
        "kind": found.kind,
        "facets": {name: canon.digest(text) for name, text in sorted(found.facets.items())},
    }


def load(folder: Path) -> PinFile:
    """What lies in a folder of patches; nothing where there is none (raises `ForkError` where it is not valid)."""
    file = folder / NAME
    try:
        raw = json.loads(file.read_bytes())
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, this kunlunfork knows {SCHEMA}")
        acks = {str(name): Ack(str(a["key"]), str(a["from"]), str(a["why"])) for name, a in raw["acks"].items()}
        return PinFile({str(name): dict(one) for name, one in raw["contracts"].items()}, acks)
    except FileNotFoundError:
        return PinFile()
    except OSError as e:
        raise ForkError(f"{file} cannot be read", found=e.strerror or str(e), expected="a file that can be read") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ForkError(
            f"{file} cannot be read", found=f"{type(e).__name__}: {e}", expected="what kunlunfork drift writes",
            fix="restore it from git",
        ) from e  # fmt: skip


def save(folder: Path, found: PinFile) -> Path:
    """Write it (raises `ForkError`)."""
    file = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{NAME}.new")
        new.write_bytes(found.dump())
        new.replace(file)
    except OSError as e:
        raise ForkError(f"{file} cannot be written", found=e.strerror or str(e), expected="a folder to write to") from e
    return file
