"""The lines of a patch file and the error that points at one of them."""

from __future__ import annotations

from itertools import accumulate

from kunlunfork.errors import ForkError
from kunlunfork.paths import show

REMAKE = "make the patch again with: git diff --full-index --binary"
_SHOWN = 100


class PatchError(ForkError):
    """A patch file that cannot be understood; `line` is 1-based, `code` names the kind of fault for lint."""

    def __init__(
        self,
        name: str,
        line: int,
        code: str,
        message: str,
        *,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(f"{name}, line {line}: {message}", found=found, expected=expected, fix=fix)
        self.line = line
        self.code = code
        self.reason = message


class Lines:
    r"""A patch file cut at b"\n" and nowhere else: CR, form feed and U+2028 are part of their lines."""

    def __init__(self, name: str, raw: bytes) -> None:
        self.name = name
        self.raw = raw
        self.text = raw.split(b"\n")
        # What follows the last newline is a line only where there is something.
        self.complete = not self.text[-1]
        if self.complete:
            self.text.pop()
        # The last line that is not empty, -1 where there is none.
        self.last = next((i for i in range(len(self.text) - 1, -1, -1) if self.text[i]), -1)
        self._starts = [0, *accumulate(len(line) + 1 for line in self.text)]

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> bytes:
        return self.text[index]

    def starts(self, index: int, *prefixes: bytes) -> bool:
        """Whether line `index` (from 0) exists and starts with one of `prefixes`."""
        return index < len(self.text) and self.text[index].startswith(prefixes)

    def offset(self, index: int) -> int:
        """The byte offset of line `index`, or of the end of the file for the one after the last."""
        return min(self._starts[index], len(self.raw))

    def found(self, index: int) -> str:
        if index >= len(self.text):
            return "the end of the file"
        line = self.text[index]
        return show(line[:_SHOWN]) + (" ..." if len(line) > _SHOWN else "") or "an empty line"

    def error(
        self,
        index: int,
        code: str,
        message: str,
        *,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = REMAKE,
    ) -> PatchError:
        """An error at line `index` (from 0), which is also what was found unless `found` says otherwise."""
        found = self.found(index) if found is None else found
        return PatchError(self.name, index + 1, code, message, found=found, expected=expected, fix=fix)
