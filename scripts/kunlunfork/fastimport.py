"""Feeding `git fast-import`."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kunlunfork import git

# Stored, not deflated: git then keeps up with reading the archive. A release takes 95 MB instead of 42.
# Not synced: an import is to take no more than twice the time of tar, which syncs nothing. A power cut soon after it
# can leave a pack that is cut or has zeros in it; git then fails, or a blob has another id, and both are told as "the
# store is damaged". Nothing is in the store alone: `cache prune --all` and the next apply make it anew.
SETTINGS = (
    "-c", "core.compression=0", "-c", "pack.compression=0", "-c", "fastimport.unpackLimit=0", "-c", "core.fsync=none",
)  # fmt: skip


class Importer:
    """One `git fast-import`; `sent` counts the bytes that it was fed."""

    def __init__(self, store: Path, errors: IO[bytes]) -> None:
        self.sent = 0
        self._errors = errors
        self._child = subprocess.Popen(
            git.command([*SETTINGS, "fast-import", "--quiet", "--depth=0", "--done", "--force"], store),
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            bufsize=1 << 18,
            env=git.environment(),
        )
        assert self._child.stdin is not None
        self._pipe = self._child.stdin
        widen(self._pipe)

    def write(self, data: bytes) -> None:
        """Feed it (raises `GitFailed`, where git has ended meanwhile, with what it said)."""
        try:
            self._pipe.write(data)
        except BrokenPipeError:
            self.check()
            raise
        self.sent += len(data)

    def end(self) -> None:
        """Say that this was all, without waiting for git to be done with it."""
        self.write(b"done\n")
        with contextlib.suppress(BrokenPipeError):  # check says why
            self._pipe.close()

    def check(self) -> None:
        """Wait for git to end (raises `GitFailed` with what it said)."""
        if self._child.wait():
            self._errors.seek(0)
            raise git.GitFailed(["fast-import"], self._child.returncode, self._errors.read())

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()


@contextlib.contextmanager
def importers(store: Path, count: int) -> Iterator[list[Importer]]:
    """Importers that work at the same time, and are ended with the block; an error kills all of them.

    Raises:
        GitFailed: one of them failed.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(count):
            running.append(Importer(store, stack.enter_context(tempfile.TemporaryFile())))
            stack.callback(running[-1].close)
        yield running
        for importer in running:
            importer.end()
        for importer in running:
            importer.check()


def widen(pipe: IO[bytes]) -> None:
    """Let the faster side of a pipe run ahead by 1 MiB, not 64 KiB, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)


def quoted(path: bytes) -> bytes:
    """A path as a line of the stream holds it."""
    if not (path.startswith(b'"') or b"\n" in path):
        return path
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
