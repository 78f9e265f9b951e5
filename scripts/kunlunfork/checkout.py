"""Writing out a tree of the store: git does that from several processes, while we get on with the rest."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kunlunfork import git, steps
from kunlunfork.git import GitFailed
from kunlunfork.store import Store

# More of them do not write faster, and a large machine has a hundred cores.
_MOST_WORKERS = 4
_SETTINGS = (
    "-c", f"checkout.workers={min(os.cpu_count() or 1, _MOST_WORKERS)}", "-c", "checkout.thresholdForParallelism=64",
    # Names that only other systems could take for .git.
    "-c", "core.protectNTFS=false", "-c", "core.protectHFS=false",
)  # fmt: skip
# What git says of files that it cannot write; it does not say why.
_PLACE = re.compile(rb"unable to (write|create) file|cannot create directory|unable to create symlink")
_SHOWN = 5


@contextlib.contextmanager
def writing(store: Store, tree: str, folder: Path, lock: int) -> Iterator[None]:
    """Write the files of a stored tree into an empty folder while the block runs; after it, all of them are there.

    Args:
        lock: a descriptor that git keeps open: were this process killed, whatever it locks stays so until git ends.

    Raises:
        ForkError: the store is damaged, or git does not work.
        OSError: there is no space, or another reason why files cannot be written there.
    """
    with tempfile.TemporaryDirectory(prefix="kunlunfork-") as place:
        args = git.command([f"--work-tree={folder}", *_SETTINGS, "read-tree", "-m", "-u", tree], store.path)
        child = subprocess.Popen(
            args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=git.environment({"GIT_INDEX_FILE": str(Path(place) / "index")}), pass_fds=(lock,),
        )  # fmt: skip
        assert child.stderr is not None
        with child.stderr as errors:
            try:
                steps.checkpoint("fill")
                yield
                said = errors.read()
                child.wait()
            finally:
                child.kill()
                errors.read()  # until its workers, too, have closed their end: they write no more
                child.wait()
    if child.returncode or said:
        raise _failed(store, folder, child.returncode, said)


def _failed(store: Store, folder: Path, status: int, said: bytes) -> Exception:
    lines = said.splitlines(keepends=True)[:_SHOWN]
    if not _PLACE.search(said):
        return store.failed(GitFailed(["read-tree"], status, b"".join(lines)))
    try:
        with (folder / ".kunlunfork-probe").open("xb", buffering=0) as probe:
            for _ in range(8):
                probe.write(bytes(1 << 20))
    except OSError as e:
        return e
    return OSError(errno.EIO, "git: " + lines[0].decode(errors="replace").strip())
