"""The header lines of one `diff --git` section: what they say of modes, and the names they agree on."""

from __future__ import annotations

import re

from kunlunfork import paths
from kunlunfork.cquote import unquote, unquote_prefix
from kunlunfork.errors import ForkError
from kunlunfork.patchlines import Lines, PatchError

EXTENDED = (
    b"old mode ", b"new mode ", b"deleted file mode ", b"new file mode ", b"copy from ", b"copy to ",
    b"rename from ", b"rename to ", b"similarity index ", b"dissimilarity index ", b"index ",
)  # fmt: skip
_MODE = re.compile(rb"[0-7]{6}")
_GITLINK = 0o160000


class Extended:
    """The extended header lines: `get` gives a value, `at` its line."""

    def __init__(self, lines: Lines, at: int) -> None:
        self.lines = lines
        self.start = at
        self._values: dict[bytes, tuple[int, bytes]] = {}
        at += 1
        while at < len(lines):
            key = next((k for k in EXTENDED if lines[at].startswith(k)), None)
            if key is None:
                break
            if key in self._values:
                raise lines.error(at, "section", "a header line for the second time", expected="each once a file")
            self._values[key] = at, lines[at][len(key) :]
            at += 1
        self.end = at

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def at(self, key: bytes) -> int:
        return self._values[key][0]

    def get(self, key: bytes) -> bytes | None:
        found = self._values.get(key)
        return None if found is None else found[1]

    def mode(self, key: bytes) -> int | None:
        value = self.get(key)
        return None if value is None else mode_of(self.lines, self.at(key), value)


def mode_of(lines: Lines, at: int, value: bytes) -> int:
    mode = int(value, 8) if _MODE.fullmatch(value) else -1
    if mode == _GITLINK:
        raise lines.error(at, "mode", "a submodule, which a patch of files cannot carry", expected="a file", fix=None)
    if mode not in paths.MODES:
        raise lines.error(at, "mode", "not the mode of a file", expected="100644, 100755 or 120000")
    return mode


def _unquote(lines: Lines, at: int, value: bytes) -> bytes:
    try:
        return unquote(value)
    except ValueError as e:
        raise lines.error(at, "path", f"a quoted path with {e}", expected="a path as git quotes it") from e


def _prefix_error(lines: Lines, at: int) -> PatchError:
    return lines.error(
        at, "prefix", "paths without the prefixes a/ and b/ (-p0, diff.noprefix, diff.mnemonicPrefix)",
        expected="diff --git a/PATH b/PATH",
        fix="make the patch again with: git diff --full-index --binary --src-prefix=a/ --dst-prefix=b/",
    )  # fmt: skip


def _halves(lines: Lines, at: int) -> tuple[bytes, bytes] | None:
    """The two names of a `diff --git` line, with their prefixes; None where spaces make it ambiguous.

    Git does not quote a space, so `diff --git a/x b/x b/x b/x` can be read only where both names are equal.
    """
    rest = lines[at][len(b"diff --git ") :]
    try:
        if rest.startswith(b'"'):
            old, tail = unquote_prefix(rest)
            if not tail.startswith(b" "):
                raise ValueError("no second path after it")
            return old, unquote(tail[1:])
        if rest.endswith(b'"'):
            # An unquoted path has no quotation mark in it.
            middle = rest.find(b' "')
            if middle < 0:
                raise ValueError("no opening quote")
            return rest[:middle], unquote(rest[middle + 1 :])
    except ValueError as e:
        raise lines.error(at, "path", f"a quoted path with {e}", expected="a path as git quotes it") from e
    middle = len(rest) // 2
    old, new = rest[:middle], rest[middle + 1 :]
    if len(rest) % 2 and rest[middle : middle + 1] == b" " and (old == new or old[2:] == new[2:]):
        return old, new
    return None


def names(extended: Extended) -> tuple[bytes, bytes]:
    """The old and the new path, which every line that names them must agree on."""
    lines, at = extended.lines, extended.start
    for verb in (b"rename", b"copy"):
        source, target = verb + b" from ", verb + b" to "
        if source in extended and target in extended:
            old = _unquote(lines, extended.at(source), extended.get(source) or b"")
            new = _unquote(lines, extended.at(target), extended.get(target) or b"")
            rest = lines[at][len(b"diff --git ") :]
            pair = _halves(lines, at) if b'"' in rest else None
            if pair == (b"a/" + old, b"b/" + new) or (not pair and rest == b"a/" + old + b" b/" + new):
                return old, new
            if pair == (old, new) or (not pair and rest == old + b" " + new):
                raise _prefix_error(lines, at)
            raise lines.error(
                at, "names", f"the names differ from those of the {verb.decode()} lines",
                expected=f"a/{paths.show(old)} b/{paths.show(new)}",
            )  # fmt: skip
        if source in extended or target in extended:
            raise lines.error(extended.end, "section", f"a {verb.decode()} with one of its two names", expected="both")
    old, new = _halves(lines, at) or (b"", b"")
    if old and not (old.startswith(b"a/") and new.startswith(b"b/")):
        raise _prefix_error(lines, at)
    if not old or old[2:] != new[2:]:
        raise lines.error(
            at, "names", "two names that differ, without rename or copy lines",
            expected="diff --git a/PATH b/PATH",
        )  # fmt: skip
    return old[2:], new[2:]


def check_side(lines: Lines, at: int, keyword: bytes, expected: bytes) -> None:
    """The `---` or `+++` line must name what the section's first line does."""
    value = lines[at][len(keyword) :] if lines.starts(at, keyword) else None
    # Git closes a name that has a space in it with a tab.
    name = None if value is None else _unquote(lines, at, value[:-1] if value.endswith(b"\t") else value)
    if name != expected:
        raise lines.error(
            at, "names", "this line differs from the rest of the section's header",
            expected=f"{keyword.decode()}{paths.show(expected)}",
        )  # fmt: skip


def check_path(lines: Lines, at: int, path: bytes) -> None:
    try:
        paths.check(path, where=f"{lines.name}, line {at + 1}")
    except ForkError as e:
        raise lines.error(at, "path", "a path that leaves its tree or reaches into its records",
                          found=e.found, expected=e.expected, fix=e.fix) from e  # fmt: skip
