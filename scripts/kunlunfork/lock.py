"""The lock: what was applied to a tree, and what lay there before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork import __version__, paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import MODES, Entry

SCHEMA = 1
NAME = "lock.json"
MAX_BYTES = 64 << 20
ROLES = ("patch", "overlay", "stamp", "record")

_BLOB = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Held:
    """One file: why it is in the lock, what lay there (`pre`, with its permission bits `perm`) and what lies there."""

    role: str
    pre: Entry | None
    post: Entry | None
    perm: int | None = None


@dataclass(frozen=True)
class Lock:
    """A fork tree's record.

    `version` and `commit` are the pin's; `base_kind` and `base_version` are the tree's own (with a local label such as
    `+cpu`); `patches` are (name, SHA-256) in order; `folders` are those that apply made.
    """

    version: str
    commit: str
    base_kind: str
    base_version: str
    series_hash: str
    overlay_hash: str
    patches: tuple[tuple[str, str], ...]
    files: Mapping[bytes, Held]
    folders: tuple[bytes, ...]
    tool: str = field(default=__version__, compare=False)

    def pre_blobs(self) -> set[str]:
        return {held.pre.blob for held in self.files.values() if held.pre is not None}


def _entry(value: Entry | None, perm: int | None = None) -> dict[str, object] | None:
    if value is None:
        return None
    out: dict[str, object] = {"blob": value.blob, "mode": f"{value.mode:o}"}
    return out if perm is None else {**out, "perm": f"{perm:o}"}


def dump(lock: Lock) -> bytes:
    raw = {
        "schema": SCHEMA,
        "tool": lock.tool,
        "pin": {"version": lock.version, "commit": lock.commit},
        "base": {"kind": lock.base_kind, "version": lock.base_version},
        "series": {"hash": lock.series_hash, "patches": [{"name": n, "sha256": h} for n, h in lock.patches]},
        "overlay": {"hash": lock.overlay_hash},
        "files": {
            paths.to_text(path): {"role": h.role, "pre": _entry(h.pre, h.perm), "post": _entry(h.post)}
            for path, h in sorted(lock.files.items())
        },
        "folders": [paths.to_text(f) for f in lock.folders],
    }
    return json.dumps(raw, indent=1, ensure_ascii=True).encode() + b"\n"


class _Bad(Exception):
    pass


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise _Bad(what)


def _text(value: Any, what: str) -> str:
    _need(isinstance(value, str), f"{what}: {type(value).__name__}, expected text")
    return str(value)


def _load_entry(value: Any, what: str) -> tuple[Entry | None, int | None]:
    if value is None:
        return None, None
    _need(isinstance(value, dict), f"{what}: {type(value).__name__}, expected an object or null")
    blob, mode = _text(value.get("blob"), f"{what}.blob"), _text(value.get("mode"), f"{what}.mode")
    _need(_BLOB.fullmatch(blob) is not None, f"{what}.blob: not 40 hex digits")
    _need(mode in {f"{m:o}" for m in MODES}, f"{what}.mode: {mode[:12]!r}")
    perm = value.get("perm")
    if perm is not None:
        _need(re.fullmatch(r"[0-7]{1,4}", _text(perm, f"{what}.perm")) is not None, f"{what}.perm: not octal")
    return Entry(int(mode, 8), blob), int(perm, 8) if perm is not None else None


def _parse(raw: Any) -> Lock:
    _need(isinstance(raw, dict), "not an object")
    _need(raw.get("schema") == SCHEMA, f"schema {raw.get('schema')!r}, this kunlunfork reads {SCHEMA}")
    for name in ("pin", "base", "series", "overlay", "files"):
        _need(isinstance(raw.get(name), dict), f"{name}: missing")
    _need(isinstance(raw.get("folders"), list), "folders: missing")
    files = {}
    for name, value in raw["files"].items():
        _need(isinstance(value, dict) and value.get("role") in ROLES, f"files[{name[:80]!r}]: no valid role")
        pre, perm = _load_entry(value.get("pre"), f"files[{name[:80]!r}].pre")
        post, _ = _load_entry(value.get("post"), f"files[{name[:80]!r}].post")
        files[paths.check(paths.from_text(name), where=NAME)] = Held(value["role"], pre, post, perm)
    patches = raw["series"].get("patches")
    _need(isinstance(patches, list) and all(isinstance(p, dict) for p in patches), "series.patches: not a list")
    return Lock(
        version=_text(raw["pin"].get("version"), "pin.version"),
        commit=_text(raw["pin"].get("commit"), "pin.commit"),
        base_kind=_text(raw["base"].get("kind"), "base.kind"),
        base_version=_text(raw["base"].get("version"), "base.version"),
        series_hash=_text(raw["series"].get("hash"), "series.hash"),
        overlay_hash=_text(raw["overlay"].get("hash"), "overlay.hash"),
        patches=tuple((_text(p.get("name"), "patch name"), _text(p.get("sha256"), "patch hash")) for p in patches),
        files=files,
        folders=tuple(paths.check(paths.from_text(_text(f, "folder")), where=NAME) for f in raw["folders"]),
        tool=_text(raw.get("tool"), "tool"),
    )


def load_bytes(data: bytes, where: Path) -> Lock:
    """Parse a lock, trusting nothing in it.

    Raises:
        ForkError: it is too large, does not parse, has another schema, or names a path outside the tree.
    """
    try:
        _need(len(data) <= MAX_BYTES, f"{len(data)} bytes")
        return _parse(json.loads(data))
    except (ValueError, RecursionError, _Bad) as e:
        raise ForkError(
            f"{where} is not a lock of kunlunfork",
            found=str(e) or "something that is no JSON",
            expected=f"schema {SCHEMA}, written by kunlunfork",
            fix="restore the file, or take a fresh tree of a release that is listed by: kunlunfork pins",
        ) from e


def read(state: Path) -> Lock | None:
    """The lock in a state folder, or None (raises `ForkError` where it cannot be read)."""
    file = state / NAME
    try:
        return load_bytes(paths.read_plain(file), file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise ForkError(f"{file} cannot be read", found=e.strerror or str(e)) from e
