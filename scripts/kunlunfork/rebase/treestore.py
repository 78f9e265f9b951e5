"""Git objects without a process for each: one `cat-file` reads, trees are edited and compared here.

A rebase takes some hundred small steps on trees of thousands of files; only the merge itself is git's.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from hashlib import sha1
from types import TracebackType

from kunlunfork import git
from kunlunfork.objects import Repository
from kunlunfork.paths import Entry, parents

TREE = 0o040000
Effect = dict[bytes, tuple[Entry | None, Entry | None]]
_Rows = dict[bytes, tuple[int, str]]


class TreeStore:
    """Objects of a repository that this process alone writes to, and of those that it sees.

    Raises (every method): ForkError where an object is missing.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._rows: dict[str, _Rows] = {}
        self._blobs: dict[str, bytes] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TreeStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._child is not None:
            assert self._child.stdin is not None and self._child.stdout is not None
            self._child.stdin.close()
            self._child.stdout.close()
            self._child.wait()

    def _read(self, name: str, kind: bytes) -> bytes:
        if self._child is None:
            self._child = subprocess.Popen(
                git.command(["cat-file", "--batch"], self.repository.path), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=git.environment(),
            )  # fmt: skip
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(name.encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            raise self.repository.damaged(f"git stopped before it gave {name}") from None
        answer = child.stdout.readline().split()
        if len(answer) != 3 or answer[1] != kind:
            raise self.repository.damaged(f"{kind.decode()} {name} is missing or changed")
        data = child.stdout.read(int(answer[2]))
        child.stdout.read(1)  # a newline
        return data

    def _write(self, kind: bytes, data: bytes) -> str:
        raw = b"%s %d\0%s" % (kind, len(data), data)
        name = sha1(raw, usedforsecurity=False).hexdigest()
        folder = self.repository.path / "objects" / name[:2]
        file = folder / name[2:]
        if not file.exists():
            folder.mkdir(exist_ok=True)
            new = folder / f"new-{secrets.token_hex(6)}"
            new.write_bytes(zlib.compress(raw, 1))
            os.replace(new, file)  # noqa: PTH105  (the same, but for a Path object each)
        return name

    def blob(self, name: str) -> bytes:
        """The bytes of a blob."""
        if name not in self._blobs:
            self._blobs[name] = self._read(name, b"blob")
        return self._blobs[name]

    def put(self, data: bytes) -> str:
        """Store a blob and return its id."""
        return self._write(b"blob", data)

    def empty(self) -> str:
        """The id of the tree without files."""
        return self._write(b"tree", b"")

    def data(self, entry: Entry | None) -> bytes | None:
        return None if entry is None else self.blob(entry.blob)

    def commit(self, tree: str, parent: str | None = None) -> str:
        """A commit of ours, for merging only."""
        who = "kunlunfork <kunlunfork@invalid> 0 +0000"
        lines = [f"tree {tree}", *([f"parent {parent}"] if parent else []), f"author {who}", f"committer {who}", "", ""]
        return self._write(b"commit", "\n".join(lines).encode())

    def rows(self, tree: str) -> _Rows:
        """What lies directly in a tree: name -> (mode, id)."""
        known = self._rows.get(tree)
        if known is None:
            known = {}
            raw = self._read(tree, b"tree")
            at = 0
            while at < len(raw):
                space, nul = raw.index(b" ", at), raw.index(b"\0", at)
                known[raw[space + 1 : nul]] = (int(raw[at:space], 8), raw[nul + 1 : nul + 21].hex())
                at = nul + 21
            self._rows[tree] = known
        return known

    def _at(self, tree: str, path: bytes) -> tuple[int, str] | None:
        *folders, name = path.split(b"/")
        for folder in folders:
            found = self.rows(tree).get(folder)
            if found is None or found[0] != TREE:
                return None
            tree = found[1]
        return self.rows(tree).get(name)

    def get(self, tree: str, path: bytes) -> Entry | None:
        """The file at a path; None where nothing, or a folder, is there."""
        found = self._at(tree, path)
        return None if found is None or found[0] == TREE else Entry(*found)

    def is_folder(self, tree: str, path: bytes) -> bool:
        found = self._at(tree, path)
        return found is not None and found[0] == TREE

    def is_taken(self, tree: str, path: bytes) -> bool:
        """Whether no file can be put there without something else going."""
        return self._at(tree, path) is not None or any(self.get(tree, above) is not None for above in parents(path))

    def replace(self, tree: str, files: Mapping[bytes, Entry | None]) -> str:
        """The tree with these files as they are given, None for absent; a file in the way of a folder goes."""
        if not files:
            return tree
        return self._replace(tree, files) or self.empty()

    def _replace(self, tree: str | None, files: Mapping[bytes, Entry | None]) -> str | None:
        rows = dict(self.rows(tree)) if tree is not None else {}
        inner: dict[bytes, dict[bytes, Entry | None]] = {}
        for path, entry in files.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                inner.setdefault(name, {})[rest] = entry
            elif entry is not None:
                rows[name] = (entry.mode, entry.blob)
            elif rows.get(name, (TREE, ""))[0] != TREE:
                del rows[name]
        for name, below in inner.items():
            had = rows.get(name)
            made = self._replace(had[1] if had is not None and had[0] == TREE else None, below)
            if made is not None:
                rows[name] = (TREE, made)
            elif had is not None and had[0] == TREE:
                del rows[name]
        if not rows:
            return None
        # Git's order: a folder sorts as if its name ended with a slash.
        order = sorted(rows, key=lambda name: name + b"/" if rows[name][0] == TREE else name)
        raw = b"".join(b"%o %s\0%s" % (rows[n][0], n, bytes.fromhex(rows[n][1])) for n in order)
        name_ = self._write(b"tree", raw)
        self._rows[name_] = rows
        return name_

    def files(self, tree: str, top: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """Every file of a tree."""
        for name, (mode, what) in self.rows(tree).items():
            if mode == TREE:
                yield from self.files(what, top + name + b"/")
            else:
                yield top + name, Entry(mode, what)

    def below(self, tree: str, folder: bytes) -> Iterator[tuple[bytes, Entry]]:
        """Every file of a folder that is there."""
        found = self._at(tree, folder)
        assert found is not None and found[0] == TREE
        return self.files(found[1], folder + b"/")

    def effect(self, before: str, after: str) -> Effect:
        """What each path that differs between two trees was and is, in the order of the paths."""
        found: Effect = {}
        self._compare(before, after, b"", found)
        return dict(sorted(found.items()))

    def _compare(self, before: str | None, after: str | None, top: bytes, found: Effect) -> None:
        if before == after:
            return
        old = self.rows(before) if before else {}
        new = self.rows(after) if after else {}
        for name in {*old, *new}:
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            path = top + name
            trees = [x[1] if x is not None and x[0] == TREE else None for x in (was, now)]
            if any(trees):
                self._compare(trees[0], trees[1], path + b"/", found)
            files = [Entry(*x) if x is not None and x[0] != TREE else None for x in (was, now)]
            if any(files):
                found[path] = (files[0], files[1])


class Between(Mapping[bytes, tuple[Entry | None, Entry | None]]):
    """What differs between two releases; compared only when someone asks, which most steps never do."""

    def __init__(self, store: TreeStore, old: str, new: str) -> None:
        self._store, self._old, self._new = store, old, new
        self._effect: Effect | None = None

    def _found(self) -> Effect:
        if self._effect is None:
            self._effect = self._store.effect(self._old, self._new)
        return self._effect

    def __getitem__(self, path: bytes) -> tuple[Entry | None, Entry | None]:
        return self._found()[path]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())
