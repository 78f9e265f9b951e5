"""From the JSON of a line of results to what it stands for. A field of the wrong type is a `ValueError`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kunlunfork.matrix.cells import OUTCOMES, Cell, Run


def _field(raw: Mapping[str, Any], name: str, check: Callable[[Any], bool], kind: str) -> Any:
    value = raw[name]
    if not check(value):
        raise ValueError(f"{name}: {value!r:.80}, expected {kind}")
    return value


def text(raw: Mapping[str, Any], name: str) -> str:
    return str(_field(raw, name, lambda v: isinstance(v, str), "text"))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _maybe(raw: Mapping[str, Any], name: str, check: Callable[[Any], bool], kind: str) -> Any:
    """None where the field is null or not there."""
    return None if raw.get(name) is None else _field(raw, name, check, kind)


def run(raw: Mapping[str, Any]) -> Run:
    """Of a head, or of a cell line of version 1."""
    versions = _field(raw, "versions", lambda v: isinstance(v, dict) and all(map(_text, v.values())), "names to text")
    return Run(
        pin=text(raw, "pin"),
        device=text(raw, "device"),
        tier=text(raw, "tier"),
        seed=_field(raw, "seed", _whole, "a whole number"),
        series=text(raw, "series"),
        overlay=text(raw, "overlay"),
        versions=versions,
        machine=text(raw, "machine"),
        random=_maybe(raw, "random", _whole, "a whole number"),
        switches=_maybe(raw, "switches", _text, "text"),
        date=_maybe(raw, "date", _text, "text"),
        command=tuple(_maybe(raw, "command", _all(_text), "a list of text") or ()),
        shard=_maybe(raw, "shard", _text, "text"),
        steps=_maybe(raw, "steps", _whole, "a whole number"),
    )


def tier(raw: Mapping[str, Any]) -> tuple[str, int, str]:
    """Of a line that says what a tier means to run. What is counted was always cells once."""
    count = _field(raw, "cells", lambda v: _whole(v) and v >= 0, "a count")
    return text(raw, "tier"), count, _maybe(raw, "of", _text, "text") or "cells"


def cell(raw: Mapping[str, Any], shared: Run) -> Cell:
    off = _maybe(raw, "off", _all(_text), "a list of text")
    index = _maybe(raw, "index", _all(_whole), "a list of whole numbers")
    return Cell(
        run=shared,
        test=text(raw, "test"),
        case=text(raw, "case"),
        outcome=_field(raw, "outcome", lambda v: v in OUTCOMES, " or ".join(OUTCOMES)),
        sites=tuple(_field(raw, "sites", _all(_whole), "a list of whole numbers")),
        launcher=text(raw, "launcher"),
        backend=_maybe(raw, "backend", _text, "text"),
        ran=_maybe(raw, "ran", _text, "text"),
        setting=_maybe(raw, "setting", _text, "text"),
        off=None if off is None else tuple(off),
        error=_maybe(raw, "error", _number, "a number"),
        seconds=_field(raw, "seconds", lambda v: _number(v) and v >= 0, "seconds"),
        finished=_field(raw, "finished", _number, "seconds"),
        message=_maybe(raw, "message", _text, "text"),
        upstream=_maybe(raw, "upstream", _number, "seconds"),
        tensor=_maybe(raw, "tensor", _text, "text"),
        index=None if index is None else tuple(index),
        replay=_maybe(raw, "replay", _text, "text"),
    )
