"""Facts in the user's cache folder, a file for each blob; what is damaged or of another version is made again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Any

from kunlunfork.symbols.facts import Attribute, Call, Class, Constant, Facts, Function, Import, Parameter

# Raised whenever `read` says something else of the same file.
VERSION = 1


def pack(facts: Facts) -> bytes:
    return json.dumps(_row(facts), separators=(",", ":")).encode()


def _row(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_row(each) for each in value]
    if isinstance(value, dict):
        return {key: _row(each) for key, each in value.items()}
    if isinstance(value, str | int | bool | None):
        return value
    return [_row(getattr(value, name)) for name in value.__dataclass_fields__]  # type: ignore[attr-defined]


def unpack(data: bytes) -> Facts:
    """What was packed (raises ValueError, TypeError, KeyError or IndexError where it is damaged)."""
    functions, classes, constants, imports, exports, lazy, fault = json.loads(data)
    return Facts(
        {name: _function(row) for name, row in functions.items()},
        {name: _class(row) for name, row in classes.items()},
        {name: Constant(*row) for name, row in constants.items()},
        tuple(Import(*row) for row in imports), None if exports is None else tuple(exports), lazy, fault,
    )  # fmt: skip


def _function(row: list[Any]) -> Function:
    name, line, end, params, returns, decorators, body, shapes, calls, refs, local, abstract = row
    return Function(
        name, line, end, tuple(Parameter(*p) for p in params), returns, tuple(decorators), body, tuple(shapes),
        tuple(Call(c[0], c[1], tuple(c[2]), tuple((k, v) for k, v in c[3]), c[4], c[5]) for c in calls),
        tuple(refs), tuple((k, v) for k, v in local), abstract,
    )  # fmt: skip


def _class(row: list[Any]) -> Class:
    name, line, end, bases, decorators, body, methods, attributes = row
    found = (Attribute(a[0], a[1], a[2], tuple(a[3]), tuple(a[4]), tuple(a[5]), a[6]) for a in attributes)
    return Class(name, line, end, tuple(bases), tuple(decorators), body, tuple(methods), tuple(found))


class Kept:
    """The folder. A cache that cannot be written is none; nothing fails for it."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "symbols" / str(VERSION)

    def file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.json"

    def get(self, key: str) -> bytes | None:
        """What was kept; each file begins with the digest of the rest."""
        try:
            head, _, data = self.file(key).read_bytes().partition(b"\n")
        except OSError:
            return None
        return data if head == sha256(data).hexdigest().encode() else None

    def put(self, key: str, data: bytes) -> None:
        file = self.file(key)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_name(f"new-{secrets.token_hex(6)}")
            new.write_bytes(sha256(data).hexdigest().encode() + b"\n" + data)
            os.replace(new, file)  # noqa: PTH105  (the same, but for a Path object each)

    def facts(self, blob: str) -> Facts | None:
        """The facts of a blob, where they were kept."""
        data = self.get(blob)
        if data is None:
            return None
        try:
            return unpack(data)
        except (ValueError, TypeError, KeyError, IndexError):
            return None
