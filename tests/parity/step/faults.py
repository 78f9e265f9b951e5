# SPDX-License-Identifier: Apache-2.0
"""Faults put into this process: a function gets the code that it would have if its file were changed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import tomllib
from packaging.version import Version

PACKAGE = "vllm.v1.worker.gpu"


@dataclass(frozen=True)
class Fault:
    """`file` is below `vllm/v1/worker/gpu`; each of `scenarios` must catch it; `since`, `before`: the releases that
    have this text, where not all do."""

    name: str
    file: str
    old: str
    new: str
    scenarios: tuple[str, ...]
    since: str | None = None
    before: str | None = None

    def fits(self, version: str) -> bool:
        """Whether it is meant for a release."""
        release = Version(Version(version).base_version)
        return not ((self.since and release < Version(self.since)) or (self.before and release >= Version(self.before)))


class Broken(ValueError):
    """The fault does not fit the code, or changes nothing."""


def load(path: Path) -> tuple[Fault, ...]:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return tuple(Fault(**{**entry, "scenarios": tuple(entry["scenarios"])}) for entry in raw)


def put(fault: Fault) -> None:
    """Change the functions of this process.

    Raises:
        Broken: the old text is not in the file exactly once, the new one does not compile, or no function differs.
    """
    module = importlib.import_module(f"{PACKAGE}.{fault.file.removesuffix('.py').replace('/', '.')}")
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    if source.count(fault.old) != 1:
        raise Broken(f"{fault.file} has the old text {source.count(fault.old)} times")
    # A second module, made of the changed text, that nobody imports: only its code is of use.
    changed = ModuleType(module.__name__)
    changed.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    text = source.replace(fault.old, fault.new)
    try:
        exec(compile(text, module.__file__, "exec"), changed.__dict__)
    except SyntaxError as e:
        raise Broken(f"the new text does not compile: {e}") from e
    others = dict(_functions(changed))
    count = 0
    for name, function in _functions(module):
        other = others.get(name)
        if other is not None and _differs(function, other):
            function.__code__ = other.__code__
            count += 1
    if not count:
        raise Broken(f"no function of {fault.file} differs")


def _differs(a: FunctionType, b: FunctionType) -> bool:
    return a.__code__.co_code != b.__code__.co_code or _constants(a.__code__) != _constants(b.__code__)


def _constants(code: Any) -> list[Any]:
    found: list[Any] = [code.co_names]
    for constant in code.co_consts:
        found.append((constant.co_code, _constants(constant)) if hasattr(constant, "co_code") else repr(constant))
    return found


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """The functions that the module defines, methods and what decorators wrap included, by qualified name."""
    for holder in (module, *(v for v in vars(module).values() if isinstance(v, type))):
        if getattr(holder, "__module__", module.__name__) != module.__name__:
            continue
        for value in list(vars(holder).values()):
            function: Any = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function.__qualname__, function
