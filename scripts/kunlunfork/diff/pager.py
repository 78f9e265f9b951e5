"""The pager that git would use, and whether there is one to use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

# What git tells less: end at once where all fits, show colours, leave the screen. And lv: show colours.
_DEFAULTS = {"LESS": "FRX", "LV": "-c"}


def colours(choice: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to write colours to the standard output: `always`, `never`, or `auto`."""
    if choice != "auto":
        return choice == "always"
    # https://no-color.org: present and not empty, whatever its value
    return _on_terminal() and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def command(environ: Mapping[str, str] = os.environ) -> str | None:
    """The pager of git's configuration and variables (GIT_PAGER, core.pager, PAGER, less); None for none.

    No repository's configuration is asked: what is compared may lie in anyone's.
    """
    if not _on_terminal():
        return None
    try:
        said = subprocess.run(
            ["git", "var", "GIT_PAGER"], cwd=os.sep, env=dict(environ), capture_output=True, check=False
        )
    except OSError:
        return None
    found = os.fsdecode(said.stdout).strip()
    return found if said.returncode == 0 and found not in ("", "cat") else None


def _on_terminal() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.isatty(sys.stdout.fileno())
    return False


def write(data: bytes, pager: str | None) -> None:
    """Write to the standard output, through a pager where one is given that starts."""
    if pager is not None and _paged(data, pager):
        return
    out = sys.stdout
    out.flush()
    out.buffer.write(data)
    out.flush()


def _paged(data: bytes, pager: str) -> bool:
    """False where the shell did not find the pager."""
    with _until_the_pager_ends():
        child = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env={**_DEFAULTS, **os.environ})
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # who has seen enough leaves
            child.stdin.write(data)
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        return child.wait() not in (126, 127)


@contextlib.contextmanager
def _until_the_pager_ends() -> Iterator[None]:
    """Ctrl-C is meant for the pager, which may go on."""
    had = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, had)
