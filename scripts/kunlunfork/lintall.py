"""Lint over whole pins: the pin file, the series and the overlay, against the release where the store has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kunlunfork import areas, overlay, pins
from kunlunfork.cache import Cache
from kunlunfork.content import Content
from kunlunfork.contracts import pinfile
from kunlunfork.errors import ForkError
from kunlunfork.findings import Finding
from kunlunfork.lint import lint
from kunlunfork.paths import Entry
from kunlunfork.preimage import Upstream
from kunlunfork.store import Base, Store


def versions(content: Content) -> tuple[str, ...]:
    """What there is to look at: every folder of patches, also one whose pin is missing (raises `ForkError`)."""
    content.newest()
    return pins.version_folders(content.patches)


def lint_pins(content: Content, versions: Sequence[str], cache: Cache) -> tuple[Finding, ...]:
    """The findings of these pins, in their order (raises `ForkError` where one is named that is not there)."""
    store = Store(cache.store) if os.path.isdir(cache.store) else None  # noqa: PTH112  (never raises)
    findings = _readable(content.patches / areas.FILE, "areas", lambda: areas.load(content.patches))
    for version in versions:
        folder = content.patches / version
        if not os.path.isdir(folder):  # noqa: PTH112
            folder = content.patches / content.pin(version).version
        findings += _readable(folder / pinfile.NAME, "contracts", partial(pinfile.load, folder))
        try:
            pin = pins.load(folder / "pin.toml")
        except ForkError as e:
            if _acknowledged_only(folder):
                continue
            message = "; ".join([e.message, *e.details, *([e.found] if e.found else [])])
            findings.append(Finding(str(folder / "pin.toml"), None, "pin", message, e.fix or "compare it with another"))
            continue
        base = store.find("sdist", pin.version, pin.sdist_sha256) if store is not None else None
        files = {
            path: (file.entry, file.data, file.source)
            for path, file in overlay.resolve(content.overlay, pin.version).files.items()
        }
        upstream = _upstream(store, base) if store is not None and base is not None else None
        findings += lint(content.patches / pin.version, files, upstream)
    return tuple(findings)


def _acknowledged_only(folder: Path) -> bool:
    """Whether there is only what `drift --ack` noted before the rebase onto a release."""
    try:
        return [entry.name for entry in folder.iterdir()] == [pinfile.NAME]
    except OSError:
        return False


def _readable(file: Path, code: str, read: Callable[[], object]) -> list[Finding]:
    """What `read` says of a file that need not be there."""
    try:
        if pins.is_there(file):
            read()
    except ForkError as e:
        message = "; ".join([e.message, *e.details, *([e.found] if e.found else [])])
        return [Finding(str(file), None, code, message, e.fix or "restore it from git")]
    return []


def _upstream(store: Store, base: Base) -> Upstream:
    entries = store.entries(base.tree)

    def read(path: bytes) -> tuple[Entry, bytes] | None:
        entry = entries.get(path)
        return None if entry is None else store.read({path: entry})[path]

    return read
