"""Parameters of a function and names of a `from x import`, added to lists that upstream changed as well."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kunlunfork.rebase import linediff, outline
from kunlunfork.rebase.linediff import Change
from kunlunfork.rebase.outline import Block, Outline, Unit

_Spot = tuple[int, int]
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT)


@dataclass(frozen=True)
class Element:
    """`key` is its name; `text` all of it, without layout. Places are (line of the file from 0, character)."""

    key: str
    text: str
    start: _Spot
    end: _Spot


@dataclass(frozen=True)
class Listed:
    """A list with what is before and after it in its statement. Lines `first:last` of the file hold it all."""

    before: str
    after: str
    items: tuple[Element, ...]
    opening: _Spot
    closing: _Spot
    ordered: bool
    first: int
    last: int

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(item.key for item in self.items)


@dataclass(frozen=True)
class Carried:
    """Lines `start:end` of the new file become `lines`."""

    start: int
    end: int
    lines: tuple[bytes, ...]


def carried(old: Outline, ours: Outline, change: Change, new: Outline) -> Carried | None:
    """A change that only adds elements to one list, made to that list in the new file.

    Parameters keep their order: they go between the two that they were put between, which must still be neighbours;
    after a `*`, and among names that are imported, one neighbour will do.

    Returns:
        None where the change is another one, or has no place.
    """
    was = _around(old, change.old_start, change.old_end)
    now = _around(ours, change.new_start, change.new_end)
    if was is None or now is None:
        return None
    (block, unit), (_, other) = was, now
    before, after = read(old.lines, unit), read(ours.lines, other)
    if before is None or after is None or not _holds(before, change.old_start, change.old_end):
        return None
    added = _added(before, after)
    if not added or not _holds(after, change.new_start, change.new_end):
        return None
    found = list(_counterparts(block, unit, before, new))
    if len(found) != 1:
        return None
    return _insert(new.lines, found[0], after, added, ours.lines)


def _around(side: Outline, start: int, end: int) -> tuple[Block, Unit] | None:
    """The statement that holds these lines, or is next to them where there are none."""
    for line in (start, start - 1) if start == end else (start,):
        if 0 <= line < len(side.lines):
            place = side.place(line)
            if place.unit is not None and len(place.unit.nodes) == 1:
                return place.block, place.unit
    return None


def _holds(listed: Listed, start: int, end: int) -> bool:
    return listed.first <= start and end <= listed.last


def _counterparts(block: Block, unit: Unit, listed: Listed, new: Outline) -> Iterator[Listed]:
    """The same list in another file: of the same function, or imported from the same module in the same block."""
    for other_block in new.blocks:
        for other in other_block.units:
            if type(other.node) is not type(unit.node) or len(other.nodes) != 1:
                continue
            if listed.ordered:
                mine, theirs = unit.blocks, other.blocks
                same = bool(mine and theirs) and outline.same(mine[0].scope, theirs[0].scope)
            else:
                same = other_block.chain == block.chain and outline.same(block.scope, other_block.scope)
            found = read(new.lines, other) if same else None
            if found is not None and (listed.ordered or found.before == listed.before):
                yield found


def read(lines: Sequence[bytes], unit: Unit) -> Listed | None:
    """The list in a statement; None for a statement that has none."""
    node = unit.node
    ordered = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if not ordered and not (isinstance(node, ast.ImportFrom) and unit.is_import):
        return None
    first = node.lineno - 1
    try:
        text = b"".join(lines[first : unit.last]).decode()
        tokens = _statement(text)
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return None
    opening = _opening(tokens, ordered)
    if opening is None:
        return None
    bracketed = tokens[opening - 1].string == "("
    depth = 0
    groups: list[list[tokenize.TokenInfo]] = [[]]
    at = opening
    while at < len(tokens):
        string = tokens[at].string
        if depth == 0 and (string == ")" if bracketed else tokens[at].type == tokenize.NEWLINE):
            break
        if depth == 0 and string == ",":
            groups.append([])
        else:
            depth += (string in "([{") - (string in ")]}") if tokens[at].type == tokenize.OP else 0
            groups[-1].append(tokens[at])
        at += 1
    if at == len(tokens):
        return None

    def place(spot: _Spot) -> _Spot:
        return first + spot[0] - 1, spot[1]

    head = tokens[: opening - 1] if bracketed else tokens[:opening]
    rest = tokens[at + 1 :] if bracketed else tokens[at:]
    items = tuple(
        Element(_key(group, ordered), _text(group), place(group[0].start), place(group[-1].end))
        for group in groups
        if group
    )
    return Listed(
        _text(head), _text(rest), items, place(tokens[opening - 1].end), place(tokens[at].start), ordered, first,
        first + tokens[-1].end[0],
    )  # fmt: skip


def _statement(text: str) -> list[tokenize.TokenInfo]:
    """The tokens up to the end of a statement's head: its line's end, or the colon of a def."""
    found = []
    depth = 0
    is_def = False
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type in _SKIPPED:
            continue
        found.append(token)
        is_def = is_def or token.string == "def"
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if depth == 0 and (token.string == ":" if is_def else token.type == tokenize.NEWLINE):
            return found
    return found


def _opening(tokens: Sequence[tokenize.TokenInfo], ordered: bool) -> int | None:
    """The index of the token with which the list begins, after its bracket if it has one."""
    word = "def" if ordered else "import"
    at = next((i for i, t in enumerate(tokens) if t.string == word and t.type == tokenize.NAME), None)
    if at is None:
        return None
    at += 2 if ordered else 1
    if at < len(tokens) and tokens[at].string == "(":
        return at + 1
    return None if ordered else at  # type parameters, which stand before the bracket, are not read


def _text(tokens: Sequence[tokenize.TokenInfo]) -> str:
    return " ".join(t.string for t in tokens if t.type != tokenize.NEWLINE)


def _key(tokens: Sequence[tokenize.TokenInfo], ordered: bool) -> str:
    if not ordered:
        return _text(tokens)
    stars = tokens[0].string if tokens[0].type == tokenize.OP else ""
    return stars + next((t.string for t in tokens if t.type == tokenize.NAME), "")


def _added(before: Listed, after: Listed) -> list[int]:
    """Which elements are new, if the rest of the statement is as it was."""
    if (before.before, before.after) != (after.before, after.after):
        return []
    a, b = [i.text for i in before.items], [i.text for i in after.items]
    found: list[int] = []
    for kind, _, _, start, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind not in ("equal", "insert"):
            return []
        found += range(start, end) if kind == "insert" else ()
    return found


def _insert(
    lines: Sequence[bytes], target: Listed, after: Listed, added: Sequence[int], source: Sequence[bytes]
) -> Carried | None:
    keys = target.keys
    if any(after.items[i].key in keys for i in added) or len(set(keys)) != len(keys):
        return None
    texts: dict[int, list[str]] = {}
    for i in added:
        item = after.items[i]
        gap = _gap(target, after, i, added)
        if gap is None or item.start[0] != item.end[0]:
            return None
        texts.setdefault(gap, []).append(source[item.start[0]].decode()[item.start[1] : item.end[1]])
    rows = [line.decode() for line in lines[target.first : target.last]]
    for gap in sorted(texts, reverse=True):
        _write(rows, target, gap, texts[gap])
    return Carried(target.first, target.last, tuple(linediff.cut("".join(rows).encode())))


def _gap(target: Listed, after: Listed, index: int, added: Sequence[int]) -> int | None:
    """Before which element of the target the added one goes."""
    old = [i for i in range(len(after.items)) if i not in added]
    left = max((i for i in old if i < index), default=None)
    right = min((i for i in old if i > index), default=None)
    keys = target.keys
    before = 0 if left is None else keys.index(after.keys[left]) + 1 if after.keys[left] in keys else None
    behind = len(keys) if right is None else keys.index(after.keys[right]) if after.keys[right] in keys else None
    if not target.ordered:
        if left is not None and before is not None:
            return before
        return behind if behind is not None else len(keys)
    if before is not None and before == behind:
        return before
    star = next((i for i, key in enumerate(keys) if key.startswith("*") and not key.startswith("**")), None)
    named = any(key.startswith("*") and not key.startswith("**") for key in after.keys[:index])
    if not named or star is None:
        return None
    if left is not None and before is not None and before > star:
        return before
    return behind if right is not None and behind is not None and behind > star else None


def _write(rows: list[str], target: Listed, gap: int, texts: Sequence[str]) -> None:
    """Put elements into the rows of a list, on a line of their own where the others have one."""
    text = ", ".join(texts)
    items = target.items

    def at(spot: _Spot) -> tuple[int, int]:
        return spot[0] - target.first, spot[1]

    def own_line(spot: _Spot) -> bool:
        row, column = at(spot)
        return not rows[row][:column].strip()

    def put(spot: _Spot, string: str) -> None:
        row, column = at(spot)
        rows[row] = rows[row][:column] + string + rows[row][column:]

    if not items:
        put(target.opening, text)
    elif gap == 0:
        start = items[0].start
        if own_line(start):
            rows.insert(at(start)[0], _line(rows[at(start)[0]], start[1], texts))
        else:
            put(start, f"{text}, ")
    else:
        last = items[gap - 1]
        following = items[gap].start if gap < len(items) else target.closing
        if following[0] == last.end[0] or not own_line(last.start):
            put(last.end, f", {text}")
        else:
            row, column = at(last.end)
            new = _line(rows[row], last.start[1], texts)
            if gap == len(items) and not rows[row][column:].lstrip().startswith(","):
                put(last.end, ",")
            rows.insert(row + 1, new)


def _line(like: str, indent: int, texts: Sequence[str]) -> str:
    end = "\r\n" if like.endswith("\r\n") else "\n"
    return "".join(f"{' ' * indent}{text},{end}" for text in texts)
