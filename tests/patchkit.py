"""Real patches for tests: two trees in a bare repository and what git says of their difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kunlunfork import git
from kunlunfork.paths import REGULAR

Files = Mapping[bytes, bytes | tuple[int, bytes]]


def quote(path: bytes) -> bytes:
    """A path for fast-import, every byte that could matter as an octal escape."""
    return b'"' + b"".join(b"%c" % c if c > 32 and c not in b'"\\' and c < 127 else b"\\%03o" % c for c in path) + b'"'


def mode_and_data(value: bytes | tuple[int, bytes]) -> tuple[int, bytes]:
    return (REGULAR, value) if isinstance(value, bytes) else value


class Pair:
    """A repository in which two trees are compared."""

    def __init__(self, folder: Path) -> None:
        self.repo = folder / "pair.git"
        git.run(["init", "-q", "--bare", self.repo])

    def load(self, old: Files, new: Files) -> None:
        """Make refs/old and refs/new from these files."""
        stream = []
        for ref, files in ((b"old", old), (b"new", new)):
            stream.append(
                b"reset refs/%s\ncommit refs/%s\ncommitter t <t@invalid> 0 +0000\ndata 0\ndeleteall\n" % (ref, ref)
            )
            for path, value in files.items():
                mode, data = mode_and_data(value)
                stream.append(b"M %o inline %s\ndata %d\n%s\n" % (mode, quote(path), len(data), data))
        git.run(["fast-import", "--quiet", "--force"], git_dir=self.repo, stdin=b"".join(stream))

    def tree(self, ref: str) -> str:
        return git.run(["rev-parse", f"refs/{ref}^{{tree}}"], git_dir=self.repo).decode().strip()

    def diff(self, *options: str) -> bytes:
        args = ["diff-tree", "-r", "-p", "--full-index", "--binary", *options, "refs/old", "refs/new"]
        return git.run(args, git_dir=self.repo)

    def raw(self, *options: str) -> bytes:
        return git.run(["diff-tree", "-r", "--raw", "-z", *options, "refs/old", "refs/new"], git_dir=self.repo)

    def apply(self, diff: bytes) -> str:
        """The tree that git makes of refs/old and a diff."""
        env = {"GIT_INDEX_FILE": str(self.repo / "apply-index")}
        git.run(["read-tree", "refs/old"], git_dir=self.repo, env=env)
        git.run(["apply", "--cached", "--unidiff-zero", "--whitespace=nowarn"], git_dir=self.repo, env=env, stdin=diff)
        return git.run(["write-tree"], git_dir=self.repo, env=env).decode().strip()


def patch(pair: Pair, old: Files, new: Files, *options: str, header: bytes = b"") -> bytes:
    """A patch file from `old` to `new` below `header`."""
    pair.load(old, new)
    return header + pair.diff(*options)
