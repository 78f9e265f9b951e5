"""Which function or class of a Python file a change lies in, as `Class.method`; '' at module level."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.patchfile import FilePatch, Hunk

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse(source: bytes, *, where: str) -> ast.Module:
    """The syntax tree of a Python file; nothing is run.

    Raises:
        ForkError: it does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as e:
        place = f", line {e.lineno}" if e.lineno else ""
        raise ForkError(f"{where}{place}: not Python", found=e.msg, expected="a file that parses") from e
    except (ValueError, RecursionError, MemoryError) as e:
        # A NUL byte; nesting deeper than the parser goes.
        found = str(e) or type(e).__name__
        raise ForkError(f"{where}: not Python", found=found, expected="a file that parses") from e


def _spans(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """(first line, last line, qualified name) of every def and class, an outer one before those inside it."""
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, name = stack.pop()
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, _Scope):
                inner = f"{name}.{child.name}" if name else child.name
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                yield first, child.end_lineno or child.lineno, inner
            stack.append((child, inner))


def _python_lines(source: bytes) -> list[int] | None:
    """Where Python has more lines than git, because it ends one at a lone CR: the Python line of each git line."""
    lines = source.split(b"\n")
    starts, at = [], 1
    for line in lines:
        starts.append(at)
        at += 1 + line.removesuffix(b"\r").count(b"\r")
    return None if at == len(lines) + 1 else starts


def scope_of_lines(source: bytes, lines: Iterable[int]) -> tuple[str, ...]:
    """The qualified names of the innermost def or class around each line, in order, each once.

    A decorator belongs to what it decorates; nested functions are joined with '.'; module level is ''.

    Args:
        source: a Python file.
        lines: numbers from 1, where a line ends at a newline as git has it.

    Raises:
        ForkError: the file does not parse.
    """
    lines = list(lines)
    owner: dict[int, str] = {}
    for first, last, name in _spans(parse(source, where="a Python file")):
        owner.update(dict.fromkeys(range(first, last + 1), name))
    starts = _python_lines(source) if b"\r" in source else None
    found: dict[str, None] = {}
    for line in lines:
        if starts is None or not 0 < line <= len(starts):
            found[owner.get(line, "")] = None
            continue
        end = starts[line] if line < len(starts) else starts[line - 1] + 1
        found.update(dict.fromkeys(owner.get(i, "") for i in range(starts[line - 1], end)))
    return tuple(found)


def _old_lines(hunk: Hunk, total: int) -> Iterator[int]:
    """The lines of the old file that a hunk changes: those it deletes, or the neighbours of a pure insertion."""
    at = hunk.old_before
    deleted: list[int] = []
    inserted = False
    for line in (*hunk.lines, b" "):
        prefix = line[:1]
        if prefix == b"+":
            inserted = True
        elif prefix == b"-":
            at += 1
            deleted.append(at)
        elif prefix == b" ":
            if deleted:
                yield from deleted
            elif inserted:
                yield from (i for i in (at, at + 1) if 0 < i <= total)
            deleted, inserted = [], False
            at += 1


def is_python(path: bytes) -> bool:
    return path.endswith((b".py", b".pyi"))


def touches(file: FilePatch, source: bytes) -> tuple[str, ...]:
    """What a patch's `Touches` fields must say of one file: `path::Qualified.name` for each edited scope.

    `path::` stands for the module level, and for a Python file that is added, deleted, copied, renamed or given
    another mode as a whole; `path` alone for what is not Python (or does not parse). The names are those of the
    old file; an added or copied file has its new path.

    Args:
        source: the old file (not looked at where there is none).
    """
    path = file.new_path if file.kind in ("add", "copy") else file.old_path
    shown = paths.show(path or b"")
    if not is_python(path or b"") or file.binary or paths.SYMLINK in (file.old_mode, file.new_mode):
        return (shown,)
    if file.kind in ("add", "copy", "delete") or not file.hunks:
        return (f"{shown}::",)
    total = source.count(b"\n") + (not source.endswith(b"\n") and source != b"")
    lines = [line for hunk in file.hunks for line in _old_lines(hunk, total)]
    try:
        return tuple(f"{shown}::{scope}" for scope in scope_of_lines(source, lines)) or (f"{shown}::",)
    except ForkError:
        return (shown,)
