"""What the files of an upstream tree may be, wherever they come from."""

from __future__ import annotations

from kunlunfork import paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import SYMLINK

# Far above any vLLM release (12 folders deep), below what a system call takes and what a recursion can follow.
MAX_DEPTH = 100
MAX_PATH = 2000
MAX_NAME = 255

_MAX_LINKS = 40

Member = tuple[bytes, int, bytes]


class Checked:
    """Looks at the files of a tree as they come.

    Raises (every method): ForkError for paths or links that leave the tree, too deep ones, two files of one name, and
        for a file where a folder is: nothing may be written through a link that the tree itself has brought.
    """

    def __init__(self, where: str, what: str = "a tree") -> None:
        self._where = where
        self._what = what
        self._files: set[bytes] = set()
        self._folders: set[bytes] = set()
        self._links: dict[bytes, bytes] = {}

    def path(self, path: bytes) -> None:
        """Before the bytes are read."""
        paths.check(path, where=self._where)
        if len(path) > MAX_PATH or path.count(b"/") >= MAX_DEPTH:
            raise self._hostile(f"{paths.show(path[:60])}... is {path.count(b'/')} folders deep")
        if max(map(len, path.split(b"/"))) > MAX_NAME:
            raise self._hostile(f"{paths.show(path[:60])}... has a name that no file system takes")
        if path in self._files:
            raise self._hostile(f"{paths.show(path)} is in it twice")
        if path in self._folders:
            raise self._hostile(f"{paths.show(path)} is both a file and a folder")
        self._files.add(path)
        folder = path.rpartition(b"/")[0]
        while folder and folder not in self._folders:
            if folder in self._files:
                raise self._hostile(f"{paths.show(folder)} is both a file and a folder")
            self._folders.add(folder)
            folder = folder.rpartition(b"/")[0]

    def data(self, path: bytes, mode: int, data: bytes) -> None:
        if mode == SYMLINK:
            paths.check_symlink(path, data, where=self._where)
            self._links[path] = data

    def add(self, path: bytes, mode: int, data: bytes) -> None:
        self.path(path)
        self.data(path, mode, data)

    @property
    def count(self) -> int:
        return len(self._files)

    def end(self) -> None:
        """After the last one: links may lead to each other, in any order."""
        for path, target in self._links.items():
            self._follow(path, target)

    def _follow(self, path: bytes, target: bytes) -> None:
        at = path.split(b"/")[:-1]
        ahead = target.split(b"/")[::-1]
        links = 1
        while ahead:
            part = ahead.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not at:
                    raise self._hostile(f"{paths.show(path)} -> {paths.show(target)} leaves the tree by other links")
                at.pop()
                continue
            at.append(part)
            further = self._links.get(b"/".join(at))
            if further is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise self._hostile(f"{paths.show(path)} -> {paths.show(target)} leads round and round")
                at.pop()
                ahead += further.split(b"/")[::-1]

    def _hostile(self, found: str) -> ForkError:
        return ForkError(
            f"{self._where} is not {self._what} of vLLM", found=found, fix="get it again from where it is made"
        )
