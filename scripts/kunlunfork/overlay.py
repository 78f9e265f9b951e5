"""The files that the fork adds: `overlay/<version>/`, each version over the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from packaging.version import Version

from kunlunfork import paths, walk
from kunlunfork.errors import ForkError
from kunlunfork.paths import REGULAR, SYMLINK, Entry
from kunlunfork.pins import version_folders

REMOVED = "REMOVED"
# What an editor or an interpreter leaves behind in a source folder is not part of the fork.
NOISE = ("__pycache__", ".DS_Store")


def is_noise(name: bytes) -> bool:
    """Whether a file or folder of this name is passed over wherever it lies in a layer."""
    return name in (noise.encode() for noise in NOISE)


@dataclass(frozen=True)
class OverlayFile:
    """One file that upstream does not have. `source` is where it lies, `layer` the version that ships it."""

    path: bytes
    entry: Entry
    data: bytes
    source: Path
    layer: str


@dataclass(frozen=True)
class Overlay:
    """The overlay of one pin, all layers resolved."""

    files: Mapping[bytes, OverlayFile]

    @property
    def hash(self) -> str:
        """SHA-256 over path, mode and blob id of every file, in the order of the paths."""
        digest = sha256()
        for path, file in sorted(self.files.items()):
            digest.update(b"%o %s\t%s\0" % (file.entry.mode, file.entry.blob.encode(), path))
        return digest.hexdigest()


def _layer_files(folder: Path, layer: str) -> dict[bytes, OverlayFile]:
    files = {}
    for path, entry, data in walk.files(folder, skip=NOISE):
        if path == REMOVED.encode():
            continue
        paths.check(path, where=f"overlay/{layer}")
        # Wheels do not carry the x bit faithfully, so the overlay has none; lint refuses it in the clone.
        mode = SYMLINK if entry.mode == SYMLINK else REGULAR
        files[path] = OverlayFile(path, Entry(mode, entry.blob), data, paths.on_disk(folder, path), layer)
    return files


def _removed(folder: Path) -> list[bytes]:
    file = folder / REMOVED
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as e:
        raise ForkError(f"{file} cannot be read", found=e.strerror or str(e), expected="a list of paths") from e
    lines = (line.strip() for line in data.split(b"\n"))
    return [paths.check(line, where=str(file)) for line in lines if line and not line.startswith(b"#")]


def resolve(folder: Path, version: str) -> Overlay:
    """The overlay of `version`: every layer up to it, later files over earlier ones, minus each layer's `REMOVED`.

    Raises:
        ForkError: a layer names a path that leaves the tree, holds a device, or removes what no earlier layer has.
    """
    wanted = Version(version)
    files: dict[bytes, OverlayFile] = {}
    for layer in (n for n in version_folders(folder) if Version(n) <= wanted):
        for path in _removed(folder / layer):
            if files.pop(path, None) is None:
                raise ForkError(
                    f"overlay/{layer}/{REMOVED} lists a file that no earlier version ships",
                    found=paths.show(path),
                    fix="delete that line",
                )
        files.update(_layer_files(folder / layer, layer))
    return Overlay(dict(sorted(files.items())))
