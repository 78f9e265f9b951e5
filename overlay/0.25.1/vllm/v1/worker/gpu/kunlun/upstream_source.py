# SPDX-License-Identifier: Apache-2.0
"""Upstream's launchers as their source files have them, without importing those.

Only for the question whether runner V2 may be offered at all; what is bound is
checked again, and strictly, when its module loads (`binder`).
"""

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .sites import Site

# The folder `vllm`, four packages above this one.
_ROOT = Path(__file__).resolve().parents[4]


def problems(sites: Iterable[Site], root: Path = _ROOT) -> tuple[str, ...]:
    """One line for each site that upstream's source does not have as expected.

    Args:
        root: the folder of the top package of the sites' modules.
    """
    files: dict[str, ast.Module | None] = {}
    found = []
    for site in sites:
        if site.module not in files:
            files[site.module] = _parse(root, site.module)
        tree = files[site.module]
        there = "no such module" if tree is None else _signature(tree, site.qualname)
        if there != site.signature:
            found.append(f"{site}: expected a function {site.signature}, found {there}")
    return tuple(found)


def _parse(root: Path, module: str) -> ast.Module | None:
    path = root.joinpath(*module.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_bytes(), str(file))
    return None


def _signature(tree: ast.Module, qualname: str) -> str:
    """As `dispatch.signature` writes it; of two definitions the later one counts."""
    node: Any = tree
    for part in qualname.split("."):
        named = [n for n in node.body if getattr(n, "name", None) == part]
        if not named:
            return "nothing"
        node = named[-1]
    if not isinstance(node, ast.FunctionDef):
        return f"a {type(node).__name__}"
    return str(inspect.Signature(_parameters(node.args)))


def _parameters(args: ast.arguments) -> list[inspect.Parameter]:
    kinds = inspect.Parameter
    plain = [(a, kinds.POSITIONAL_ONLY) for a in args.posonlyargs]
    plain += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + args.defaults
    out = [_parameter(a, kind, d) for (a, kind), d in zip(plain, defaults)]
    if args.vararg:
        out.append(_parameter(args.vararg, kinds.VAR_POSITIONAL, None))
    for a, d in zip(args.kwonlyargs, args.kw_defaults):
        out.append(_parameter(a, kinds.KEYWORD_ONLY, d))
    if args.kwarg:
        out.append(_parameter(args.kwarg, kinds.VAR_KEYWORD, None))
    return out


def _parameter(arg: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else _Default(_written(default))
    return inspect.Parameter(arg.arg, kind, default=value)


class _Default(str):
    """The text of a default's value."""

    def __repr__(self) -> str:
        return str(self)


def _written(default: ast.expr) -> str:
    try:
        return repr(ast.literal_eval(default))
    except ValueError:
        pass
    match default:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=text)], keywords=[]):
            return repr(float(text))
        case _:
            return ast.unparse(default)
