"""Blobs in a repository of ours: written in one go, read as a stream, each compared with its id."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kunlunfork import fastimport, git, paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import Entry


class Repository:
    """A bare repository at `path`.

    Raises (every method): ForkError where git fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *args: str | bytes | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        return git.run(args, git_dir=self.path, stdin=stdin, env=env)

    def damaged(self, found: str) -> ForkError:
        return ForkError(f"the repository {self.path} is damaged", found=found, fix="run the command again")

    def blobs(self, ids: Sequence[str]) -> Iterator[bytes]:
        """The bytes of these blobs, in this order, as a stream; each is checked against its id.

        Raises:
            ForkError: one is missing or damaged.
        """
        # The request goes through a file: git may answer before it has read all of it, and a pipe would then block.
        with tempfile.TemporaryFile() as request:
            request.write("".join(f"{i}\n" for i in ids).encode())
            request.seek(0)
            args = git.command(["cat-file", "--batch", "--buffer"], self.path)
            child = subprocess.Popen(
                args, stdin=request, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=1 << 20,
                env=git.environment(),
            )  # fmt: skip
            assert child.stdout is not None
            fastimport.widen(child.stdout)
            try:
                for blob in ids:
                    answer = child.stdout.readline().split()
                    if len(answer) != 3 or answer[1] != b"blob":
                        raise self.damaged(f"blob {blob} is missing or changed")
                    data = child.stdout.read(int(answer[2]))
                    child.stdout.read(1)  # a newline
                    if paths.blob_id(data) != blob:
                        raise self.damaged(f"blob {blob} is missing or changed")
                    yield data
            finally:
                child.stdout.close()
                child.kill()
                child.wait()

    def read(self, entries: Mapping[bytes, Entry]) -> dict[bytes, tuple[Entry, bytes]]:
        """Entries with their bytes."""
        blobs = self.blobs([entry.blob for entry in entries.values()])
        return {path: (entry, data) for (path, entry), data in zip(entries.items(), blobs, strict=True)}

    def entries(self, tree: str, only: Sequence[bytes] = ()) -> dict[bytes, Entry]:
        """The files of a tree; `only` these paths where given (a folder among them brings nothing).

        Raises:
            ForkError: the tree holds something that is no file or symbolic link (a submodule).
        """
        wanted = set(only)
        found = {}
        for line in self.git("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]:
            meta, _, path = line.partition(b"\t")
            if wanted and path not in wanted:
                continue
            mode, kind, blob = meta.split()
            if kind != b"blob":
                raise ForkError(f"{paths.show(path)} of the upstream tree is a submodule", expected="a file")
            found[path] = Entry(int(mode, 8), blob.decode())
        return found

    def put(self, datas: Iterable[bytes]) -> None:
        """Store blobs."""
        stream = b"".join(b"blob\ndata %d\n%s\n" % (len(data), data) for data in datas)
        if stream:
            self.git(*fastimport.SETTINGS, "fast-import", "--quiet", "--done", stdin=stream + b"done\n")


def _quoted(folder: Path) -> bytes:
    """A path as git reads it in lists of object folders, where newlines and colons separate."""
    name = os.fsencode(folder).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"%s"' % name


@contextlib.contextmanager
def scratch(objects: Path | None = None, attributes: str = git.ATTRIBUTES) -> Iterator[Repository]:
    """A repository for the length of a block, made without starting git.

    Args:
        objects: the folder of another repository's objects, which are seen in this one.
    """
    git.check_version()
    with tempfile.TemporaryDirectory(prefix="kunlunfork-") as name:
        folder = Path(name)
        for part in ("objects", "refs", "info"):
            (folder / part).mkdir()
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "info" / "attributes").write_text(attributes)
        if objects is not None:
            (folder / "objects" / "info").mkdir()
            (folder / "objects" / "info" / "alternates").write_bytes(_quoted(objects) + b"\n")
        yield Repository(folder)
