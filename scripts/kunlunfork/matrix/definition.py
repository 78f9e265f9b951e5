"""What an engine environment consists of: `ci/matrix.toml` and the requirements that it names."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kunlunfork.content import Content
from kunlunfork.errors import ForkError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Part of the key of an environment: raise it when the way of building one changes.
RECIPE = 1


@dataclass(frozen=True)
class Definition:
    """One engine environment; `ci/matrix.toml` says what the fields mean. `requirements` is the file's path."""

    vllm: str
    device: str
    python: str
    requirements: Path
    alone: tuple[str, ...]
    ops: str
    tools: tuple[str, ...]
    triton: str

    def key(self) -> str:
        """A folder name that changes with everything an environment is made of."""
        parts = {**asdict(self), "requirements": self.requirements.read_text(encoding="utf-8"), "recipe": RECIPE}
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"{self.vllm}-{self.device}-py{self.python}-{digest[:10]}"


def load(content: Content, version: str, device: str) -> Definition:
    """The engine environment of a pin on a device.

    Raises:
        ForkError: no such environment is defined, or the file is not as it should be.
    """
    path = content.root / "ci" / "matrix.toml"
    try:
        engines = tomllib.loads(path.read_text(encoding="utf-8")).get("engine", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ForkError(f"{path} cannot be read", found=str(e), fix="restore it from git") from e
    known = [_checked(path, engine) for engine in engines]
    for definition in known:
        if (definition.vllm, definition.device) == (version, device):
            return definition
    raise ForkError(
        f"no engine environment is defined for vLLM {version} on {device}",
        found=", ".join(f"{d.vllm} on {d.device}" for d in known) or "none",
        expected=f"an [[engine]] in {path}",
    )


def _checked(path: Path, raw: object) -> Definition:
    given = raw if isinstance(raw, dict) else {}
    wanted = {f.name for f in fields(Definition)}
    lists = {"alone", "tools"}
    problems = [f"{name}: missing" for name in sorted(wanted - given.keys())]
    problems += [f"{name}: unknown field" for name in sorted(given.keys() - wanted)]
    for name in sorted(wanted & given.keys()):
        value = given[name]
        if name in lists:
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                problems.append(f"{name}: expected a list of strings")
        elif not isinstance(value, str):
            problems.append(f"{name}: expected a string")
    if problems:
        raise ForkError(f"{path} has an [[engine]] that is not valid", details=problems)
    values = {name: tuple(v) if name in lists else v for name, v in given.items()}
    requirements = path.parent / given["requirements"]
    if not requirements.is_file():
        raise ForkError(f"{path} names requirements that are not there", found=f"no {requirements}")
    return Definition(**{**values, "requirements": requirements})
