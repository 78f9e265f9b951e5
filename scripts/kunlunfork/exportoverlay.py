"""The overlay's part of an export: which file goes into which layer, and what else that reaches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from kunlunfork import overlay, paths
from kunlunfork.content import Content
from kunlunfork.exportfiles import Write
from kunlunfork.overlay import REMOVED, Overlay
from kunlunfork.paths import SYMLINK, Entry

Files = Mapping[bytes, tuple[Entry, bytes]]


def plan(
    content: Content, version: str, have: Overlay, want: Files, *, own_layer: bool
) -> tuple[list[Write], list[str]]:
    """What makes the overlay of `version` these files.

    An edit goes to the layer that ships the file, so that every pin that inherits it gets it; with `own_layer` to the
    layer of `version` alone.

    Returns:
        The files to write, and what else they reach, for the user.
    """
    writes: list[Write] = []
    notes: list[str] = []
    removed: list[bytes] = []
    own = Path("overlay") / version
    older = [v for v in _layers(content) if Version(v) < Version(version)]
    inherited = overlay.resolve(content.overlay, older[-1]).files if older else {}
    for path, (entry, data) in want.items():
        old = have.files.get(path)
        mode = SYMLINK if entry.mode == SYMLINK else None
        if entry.mode == paths.EXECUTABLE:
            notes.append(f"{paths.show(path)}: overlay files have no x bit; it is left out")
        if old is not None and (old.entry.blob, old.entry.mode == SYMLINK) == (entry.blob, mode == SYMLINK):
            continue
        layer = version if old is None or own_layer else old.layer
        where = paths.on_disk(Path("overlay") / layer, path)
        writes.append(Write(where, data, mode))
        notes += _reaches(content, version, path, None if old is None else old.layer, layer)
    for path in have.files.keys() - want.keys():
        if have.files[path].layer == version:
            writes.append(Write(paths.on_disk(own, path), None, None))
        if path in inherited:
            removed.append(path)
        notes += _reaches(content, version, path, have.files[path].layer, version)
    if removed:
        file = content.overlay / version / REMOVED
        before = file.read_bytes() if file.is_file() else b""
        if before and not before.endswith(b"\n"):
            before += b"\n"
        data = before + b"".join(path + b"\n" for path in sorted(removed))
        writes.append(Write(own / REMOVED, data, None))
    keep = content.overlay / ".gitkeep"
    if not want and _layers(content) == [version] and not keep.exists():
        writes.append(Write(Path("overlay") / keep.name, b"", None))  # a clone without this folder is none
    return sorted(writes, key=lambda w: str(w.path)), notes


def _layers(content: Content) -> list[str]:
    return [v for v in content.versions() if (content.overlay / v).is_dir()]


def _reaches(content: Content, version: str, path: bytes, old: str | None, layer: str) -> list[str]:
    """Which other pins get a change of this file, made in `layer`."""
    others = []
    for pin in content.versions():
        if pin == version or Version(pin) < Version(layer):
            continue
        shipped = overlay.resolve(content.overlay, pin).files.get(path)
        inherits = (None if shipped is None else shipped.layer) == old
        if inherits and (layer == old or Version(pin) > Version(version)):
            others.append(pin)
    if not others:
        return []
    return [f"{paths.show(path)}: the change in overlay/{layer} reaches {', '.join(others)} too"]
