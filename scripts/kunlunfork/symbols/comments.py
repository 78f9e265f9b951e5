"""Comments that say a shape or a dtype: upstream writes them where annotations cannot (`# [num_reqs, 2], int32`)."""

from __future__ import annotations

import ast
import re

# A bracket with names, numbers and arithmetic first in the comment, or the name of a dtype anywhere.
_SHAPE = re.compile(r"\[[\w\s,.+*/()|:-]*\]")
_DTYPE = re.compile(r"\b(?:u?int(?:8|16|32|64)|b?float(?:8|16|32|64)\w*|bool tensor)\b")


def _quoted(tree: ast.Module) -> dict[int, list[tuple[int, int]]]:
    """Where strings lie: line -> (first, last) bytes."""
    found: dict[int, list[tuple[int, int]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            first, last = node.lineno, node.end_lineno or node.lineno
            for line in range(first, last + 1):
                start = node.col_offset if line == first else 0
                end = node.end_col_offset if line == last and node.end_col_offset is not None else 1 << 30
                found.setdefault(line, []).append((start, end))
    return found


def shapes(source: bytes, tree: ast.Module) -> dict[int, tuple[str, bool]]:
    """line -> (what its comment says of shape or dtype, white space aside; whether the comment stands alone)."""
    if b"#" not in source:
        return {}
    quoted: dict[int, list[tuple[int, int]]] | None = None
    found = {}
    for number, line in enumerate(re.split(rb"\r\n|\r|\n", source), 1):
        at = line.find(b"#")
        if at < 0:
            continue
        text = line[at:].decode(errors="replace")
        if not (_SHAPE.search(text) or _DTYPE.search(text)):
            continue
        if quoted is None:
            quoted = _quoted(tree)
        spans = quoted.get(number, [])
        while at >= 0 and any(start <= at < end for start, end in spans):
            at = line.find(b"#", at + 1)
        if at < 0:
            continue
        said = _said(line[at + 1 :].decode(errors="replace").strip())
        if said:
            found[number] = (said, not line[:at].strip())
    return found


def _said(comment: str) -> str:
    shape = _SHAPE.match(comment)
    # A sentence that speaks of a dtype is no declaration of one.
    if shape is None and (len(comment.split()) > 4 or not _DTYPE.search(comment)):
        return ""
    parts = [re.sub(r"\s+", "", shape[0])] if shape is not None else []
    return " ".join([*parts, *_DTYPE.findall(comment)])
