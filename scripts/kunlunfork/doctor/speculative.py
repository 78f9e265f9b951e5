"""`--speculative-config`, and the method that a tree would take from it."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunlunfork.doctor import source
from kunlunfork.doctor.values import PRESENT, Value
from kunlunfork.errors import USAGE, ForkError

_FILE = "vllm/config/speculative.py"
_CONFIG = "self.speculative_config"


def parse(text: str) -> dict[str, Any]:
    """Raises `ForkError` where it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        found = str(e)
    else:
        if isinstance(value, dict):
            return value
        found = f"a {type(value).__name__}"
    raise ForkError(
        "--speculative-config is not a JSON object", found=found, expected="as vllm serve takes it",
        fix="""quote it for the shell: --speculative-config '{"method": "dspark", "num_speculative_tokens": 7}'""",
        exit_code=USAGE,
    )  # fmt: skip


def facts(config: Mapping[str, Any] | None, root: Path) -> dict[str, Value]:
    """What is known of `self.speculative_config`."""
    if config is None:
        return {_CONFIG: None}
    found: dict[str, Value] = {_CONFIG: PRESENT}
    module = source.parse(root, _FILE)
    defaults = source.field_defaults(module, "SpeculativeConfig") if module is not None else {}
    for name, value in {**defaults, **config}.items():
        if value is None or isinstance(value, bool | int | float | str):
            found[f"{_CONFIG}.{name}"] = value
    method = method_of(config, module)
    if method is None:
        found.pop(f"{_CONFIG}.method", None)
        found.pop(f"{_CONFIG}.parallel_drafting", None)
    else:
        found[f"{_CONFIG}.method"] = method
    return found


def method_of(config: Mapping[str, Any], module: ast.Module | None) -> str | None:
    """The method of a configuration; None where only vLLM itself would find it out."""
    method = config.get("method")
    if isinstance(method, str):
        names = source.texts(source.assigned(module, "MTPModelTypes")) if module is not None else ()
        return "mtp" if method in names else method
    model = config.get("model")
    if isinstance(model, str) and module is not None and not method:
        for part, named in _by_name(module):
            if part in model.lower():
                return named
    return None


def _by_name(module: ast.Module) -> list[tuple[str, str]]:
    """The tests `"part" in ....model.lower()` that set `self.method`, in their order: (part, method)."""
    found = []
    for node in ast.walk(module):
        match node:
            case ast.If(
                body=[ast.Assign(targets=[ast.Attribute(attr="method")], value=ast.Constant(value=str() as m))]
            ):
                for part in ast.walk(node.test):
                    match part:
                        case ast.Compare(
                            left=ast.Constant(value=str() as text), ops=[ast.In()],
                            comparators=[ast.Call(func=ast.Attribute(value=ast.Attribute(attr="model"), attr="lower"))],
                        ):  # fmt: skip
                            found.append((node.lineno, text, m))
    return [(text, method) for _, text, method in sorted(found)]
