"""Faults that the parity tests must catch: `tests/parity/faults/*.toml`, each a change of one place of the overlay."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from packaging.version import InvalidVersion, Version

from kunlunfork import overlay
from kunlunfork.content import Content
from kunlunfork.errors import ForkError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The package of the overlay that faults are put into.
PACKAGE = b"vllm/v1/worker/gpu/kunlun/"

KINDS = (
    "off by one",
    "padding",
    "dtype",
    "shape",
    "repeated token",
    "stale row",
    "tie-break",
    "negative row",
    "sync",
    "swapped arguments",
    "salt",
    "noise key",
    "wrong row",
    "condition",
    "memory",
    "numeric",
    "wiring",
)


@dataclass(frozen=True)
class Fault:
    """One fault. `file` is relative to the package; `tests` as `tests/parity/faults_server.py` takes them; `bug`: the
    public fork's bug that it repeats; `since`, `before`: the pins that have this text, where not all do."""

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    bug: str | None = None
    since: str | None = None
    before: str | None = None

    def fits(self, version: str) -> bool:
        """Whether it is meant for a pin."""
        pin = Version(version)
        return (self.since is None or pin >= Version(self.since)) and (
            self.before is None or pin < Version(self.before)
        )


def load(content: Content) -> tuple[Fault, ...]:
    """All faults, by file and name.

    Raises:
        ForkError: a list does not parse, or a fault in it is not valid; names each.
    """
    found: list[Fault] = []
    problems: list[str] = []
    for path in sorted((content.parity / "faults").glob("*.toml")):
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8")).get("fault", [])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
            raise ForkError(f"{path} cannot be read", found=str(e)) from e
        for number, entry in enumerate(raw, 1):
            label = f"{path.name}, fault {number} ({entry.get('name', 'no name')})"
            wrong = _wrong(entry)
            if wrong:
                problems.append(f"{label}: {wrong}")
            else:
                found.append(Fault(**{**entry, "tests": tuple(entry["tests"])}))
    names = [fault.name for fault in found]
    problems += [f"{name}: two faults have this name" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise ForkError("the list of faults is not valid", details=problems)
    if not found:
        raise ForkError(f"{content.parity} has no faults", expected="faults/*.toml")
    return tuple(found)


def _wrong(entry: Mapping[str, object]) -> str | None:
    known = {f.name for f in fields(Fault)}
    if unknown := sorted(entry.keys() - known):
        return f"unknown field {', '.join(unknown)}"
    if missing := sorted(known - {"bug", "since", "before"} - entry.keys()):
        return f"no {', '.join(missing)}"
    tests = entry["tests"]
    if not isinstance(tests, list) or not tests or not all(isinstance(t, str) for t in tests):
        return "tests is not a list of names"
    if not all(isinstance(v, str) for k, v in entry.items() if k != "tests"):
        return "a field is not text"
    if entry["kind"] not in KINDS:
        return f"kind {entry['kind']!r}, expected one of {', '.join(KINDS)}"
    for name in ("since", "before"):
        if not _is_version(entry.get(name, "0")):
            return f"{name} is not a version"
    if entry["old"] == entry["new"]:
        return "old and new are the same"
    return None


def _is_version(text: object) -> bool:
    try:
        Version(str(text))
    except InvalidVersion:
        return False
    return True


def package(content: Content, version: str) -> dict[str, Path]:
    """The files of the overlay's package, by their path in it."""
    files = overlay.resolve(content.overlay, version).files
    return {
        path.removeprefix(PACKAGE).decode(): file.source for path, file in files.items() if path.startswith(PACKAGE)
    }


def check(faults: Iterable[Fault], files: Mapping[str, Path]) -> None:
    """Raises `ForkError` where the old text of a fault is not in its file exactly once, or the new one is no Python."""
    problems = []
    for fault in faults:
        if fault.file not in files:
            problems.append(f"{fault.name}: there is no {fault.file}")
            continue
        text = files[fault.file].read_text(encoding="utf-8")
        count = text.count(fault.old)
        if count != 1:
            problems.append(f"{fault.name}: {fault.file} has its old text {count} times: {_short(fault.old)}")
            continue
        try:
            compile(text.replace(fault.old, fault.new), fault.file, "exec")
        except SyntaxError as e:
            problems.append(f"{fault.name}: its new text is no Python ({e.msg}, line {e.lineno})")
    if problems:
        raise ForkError(
            "the list of faults no longer fits the overlay",
            details=problems,
            fix="correct the old texts in tests/parity/faults",
        )


def copy(files: Mapping[str, Path], folder: Path, fault: Fault | None) -> Path:
    """A copy of the package with the fault in it; returns `folder`, which then holds `kunlun/`."""
    for name, source in files.items():
        target = folder / "kunlun" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if fault is not None and fault.file == name:
            text = source.read_text(encoding="utf-8")
            target.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    return folder


def _short(text: str) -> str:
    flat = re.sub(r"\s+", " ", text).strip()
    return flat if len(flat) <= 70 else flat[:67] + "..."
