"""Files of a vLLM tree as syntax trees: read, never imported."""

from __future__ import annotations

import ast
import errno
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

_MOST = 8 << 20  # bytes


def read(root: Path, name: str) -> bytes | None:
    """The bytes of a source file; None where it is not there or cannot be read."""
    try:
        return read_file(root / name)
    except OSError:
        return None


def read_file(file: Path) -> bytes:
    """A regular file, also through a link (raises OSError): a linked tree and a cache of models have those."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with file.open("rb") as f:
        data = f.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"more than {_MOST >> 20} MiB")
    return data


def parse(root: Path, name: str) -> ast.Module | None:
    """A source file; None where it is not there or does not parse."""
    data = read(root, name)
    if data is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def assigned(module: ast.AST, name: str) -> ast.expr | None:
    """What is assigned to a name anywhere in a module; the last one counts."""
    found = None
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)) if (
                target == name and node.value is not None
            ):
                found = node.value
    return found


def texts(node: ast.AST | None) -> tuple[str, ...]:
    """All the text constants below a node, in order."""
    if node is None:
        return ()
    return tuple(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def field_defaults(module: ast.Module, class_name: str) -> Mapping[str, object]:
    """The fields of a class that have a literal as their default."""
    found: dict[str, object] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                match item:
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                        found[name] = value
    return found
