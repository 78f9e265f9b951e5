"""What a user is told when something cannot be done."""

from __future__ import annotations

from collections.abc import Sequence

OK = 0
USER = 1
USAGE = 2
CONFLICT = 3
BUG = 4
INTERRUPTED = 130


class ForkError(Exception):
    """A request that cannot be met, in the terms of the person who made it.

    Args:
        message: one sentence that names the file or the thing at fault.
        found: what is there.
        expected: what should have been there.
        fix: the command, or the one step, that mends it.
        details: a list to show below the message (paths, problems).
        exit_code: `USER` (refused, bad input) or `CONFLICT` (a person must decide).
    """

    def __init__(
        self,
        message: str,
        *,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        details: Sequence[str] = (),
        exit_code: int = USER,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.found = found
        self.expected = expected
        self.fix = fix
        self.details = tuple(details)
        self.exit_code = exit_code

    def renamed(self, old: str, new: str) -> ForkError:
        """The same error where a folder that the user never saw (`old`) bears the name of the one that is meant."""
        message, found, expected, fix, *details = (
            text and text.replace(old, new)
            for text in (self.message, self.found, self.expected, self.fix, *self.details)
        )
        return ForkError(
            message or "", found=found, expected=expected, fix=fix, details=[d or "" for d in details],
            exit_code=self.exit_code,
        )  # fmt: skip

    def as_json(self) -> dict[str, object]:
        """The `error` member of the `--json` object."""
        return {
            "message": self.message,
            "found": self.found,
            "expected": self.expected,
            "fix": self.fix,
            "details": list(self.details),
            "exit_code": self.exit_code,
        }
