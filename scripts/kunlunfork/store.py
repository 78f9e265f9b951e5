"""The store: one private bare repository with every imported release, so that the base of a merge is always there."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kunlunfork import fastimport, git, paths
from kunlunfork.errors import ForkError
from kunlunfork.paths import Entry
from kunlunfork.sources.archive import Member

_REFS = "refs/kunlunfork/bases/"

# Byte for byte: no attribute that a release ships may change what is stored or written out (eol, ident, filters).
_ATTRIBUTES = "* -text -ident -filter -diff -merge -working-tree-encoding -export-subst -export-ignore\n"


@dataclass(frozen=True)
class Base:
    """One upstream tree in the store.

    `kind` is `sdist`, `wheel` or `git`; `origin` is the SHA-256 of the archive, or the commit's id; `tree` the id of
    the stored tree; `files` and `size` (bytes) describe it.
    """

    kind: str
    version: str
    origin: str
    tree: str
    files: int
    size: int

    @property
    def ref(self) -> str:
        return f"{_REFS}{self.kind}/{self.version}/{self.origin}"


class Store:
    """Opens, or makes, the repository at `path`.

    Raises (every method): ForkError where git is missing, too old, or fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "kunlunfork").is_file():
            self._create()

    def _create(self) -> None:
        from filelock import FileLock  # 15 ms to import, which a store that is there can do without

        git.check_version()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                if (self.path / "kunlunfork").is_file():
                    return
                # The marker comes last: a store without it was interrupted while it was made, and is made again.
                shutil.rmtree(self.path, ignore_errors=True)
                git.run(["init", "--quiet", "--bare", "--template=", self.path])
                (self.path / "info").mkdir(exist_ok=True)
                (self.path / "info" / "attributes").write_text(_ATTRIBUTES)
                (self.path / "kunlunfork").write_text("1\n")
        except OSError as e:
            raise ForkError(
                f"the store {self.path} cannot be made",
                found=e.strerror or str(e),
                fix="name another cache folder: KUNLUNFORK_CACHE=DIR",
            ) from e

    def git(self, *args: str | bytes | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        return git.run(args, git_dir=self.path, stdin=stdin, env=env)

    def bases(self) -> tuple[Base, ...]:
        """Every upstream tree that is stored."""
        out = self.git("for-each-ref", "--format=%(refname)%00%(contents:subject)", _REFS)
        found = []
        for line in out.splitlines():
            ref, _, subject = line.partition(b"\0")
            if not ref.startswith(f"{_REFS}git/".encode()):
                found.append(Base(**json.loads(subject)))
            else:
                _, version, origin = ref.decode().removeprefix(_REFS).split("/", 2)
                found.append(self._git_base(version, origin, ref.decode()))
        return tuple(found)

    def _git_base(self, version: str, commit: str, ref: str) -> Base:
        tree = self.git("rev-parse", f"{ref}^{{tree}}").decode().strip()
        sizes = [int(line.split(None, 4)[3]) for line in self.git("ls-tree", "-r", "-l", tree).splitlines()]
        return Base("git", version, commit, tree, len(sizes), sum(sizes))

    def find(self, kind: str, version: str, origin: str | None = None) -> Base | None:
        for base in self.bases():
            if (base.kind, base.version) == (kind, version) and origin in (None, base.origin):
                return base
        return None

    def import_members(self, kind: str, version: str, origin: str, members: Iterable[Member]) -> Base:
        """Store a tree, streaming its files into `git fast-import`.

        All or nothing: the reference that names the tree is made last.
        """
        with self._locked(f"{kind}-{version}"):
            known = self.find(kind, version, origin)
            if known is not None:
                return known
            tree, files, size = self._fast_import(members)
            base = Base(kind, version, origin, tree, files, size)
            subject = json.dumps(asdict(base), sort_keys=True)
            date = {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}
            commit = self.git("commit-tree", tree, stdin=subject.encode(), env=date).decode().strip()
            self.git("update-ref", base.ref, commit)
            return base

    def _fast_import(self, members: Iterable[Member]) -> tuple[str, int, int]:
        listing: list[bytes] = []
        seen: set[str] = set()
        size = 0
        # Two for the blobs: git hashes all bytes four times, which takes longer than to read the archive.
        with fastimport.importers(self.path, 2) as importers:
            for path, mode, data in members:
                blob = paths.blob_id(data)
                listing.append(b"M %o %s %s\n" % (mode, blob.encode(), fastimport.quoted(path)))
                size += len(data)
                if blob not in seen:
                    seen.add(blob)
                    least = min(importers, key=lambda importer: importer.sent)
                    least.write(b"blob\ndata %d\n%s\n" % (len(data), data))
        branch = f"refs/kunlunfork/import/{secrets.token_hex(8)}"
        with fastimport.importers(self.path, 1) as [importer]:
            importer.write(f"commit {branch}\ncommitter kunlunfork <kunlunfork@invalid> 0 +0000\ndata 0\n".encode())
            importer.write(b"".join(listing))
        tree = self.git("rev-parse", f"{branch}^{{tree}}").decode().strip()
        self.git("update-ref", "-d", branch)
        return tree, len(listing), size

    def fetch(self, url: str, tag: str, version: str, expect: str, *, shown: str) -> Base:
        """Fetch `tag` of a repository, which is only read, and store the commit that it names.

        `expect` is the commit's id, or its first 9 or more digits; `shown` is the URL without a password, for messages.

        Raises:
            ForkError: the repository or the tag is not there, or the tag names another commit.
        """
        with self._locked(f"git-{version}"):
            incoming = f"refs/kunlunfork/import/{tag}"
            try:
                self.git(
                    "fetch", "--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head", "--force",
                    "--end-of-options", url, f"refs/tags/{tag}:{incoming}",
                    env={"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"},
                )  # fmt: skip
            except git.GitFailed as e:
                raise ForkError(
                    f"{tag} cannot be fetched from {shown}",
                    found=(e.found or "").replace(url, shown),
                    expected=f"a git repository of vLLM with the tag {tag}",
                    fix="name another source: --source git:URL-or-PATH, or --source pypi",
                ) from e
            commit = self.git("rev-parse", f"{incoming}^{{commit}}").decode().strip()
            self.git("update-ref", "-d", incoming)
            if not commit.startswith(expect):
                raise ForkError(
                    f"the tag {tag} of {shown} is not the release that the fork is made for",
                    found=f"commit {commit}",
                    expected=f"commit {expect}",
                    fix="use the upstream repository, or --source pypi",
                )
            ref = f"{_REFS}git/{version}/{commit}"
            self.git("update-ref", ref, commit)
            return self._git_base(version, commit, ref)

    def drop(self, base: Base) -> None:
        self.git("update-ref", "-d", base.ref)

    def collect(self) -> None:
        """Delete what no base needs any more."""
        with self._locked("gc"):
            self.git("reflog", "expire", "--expire=now", "--all")
            self.git("prune", "--expire=now")
            self.git("-c", "core.compression=0", "-c", "pack.compression=0", "repack", "-a", "-d", "-q")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        from filelock import FileLock

        with FileLock(self.path / f"{name.replace('/', '_')}.lock"):
            yield

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
                        raise self._damaged(blob)
                    data = child.stdout.read(int(answer[2]))
                    child.stdout.read(1)  # a newline
                    if paths.blob_id(data) != blob:
                        raise self._damaged(blob)
                    yield data
            finally:
                child.stdout.close()
                child.kill()
                child.wait()

    def _damaged(self, blob: str) -> ForkError:
        return ForkError(
            f"the store {self.path} is damaged",
            found=f"blob {blob} is missing or changed",
            fix="kunlunfork cache prune --all, then run the command again",
        )

    def read(self, entries: Mapping[bytes, Entry]) -> dict[bytes, tuple[Entry, bytes]]:
        """Entries with their bytes."""
        blobs = self.blobs([entry.blob for entry in entries.values()])
        return {path: (entry, data) for (path, entry), data in zip(entries.items(), blobs, strict=True)}

    def put(self, datas: Iterable[bytes]) -> None:
        """Store blobs."""
        stream = b"".join(b"blob\ndata %d\n%s\n" % (len(data), data) for data in datas)
        if stream:
            self.git("-c", "core.compression=1", "fast-import", "--quiet", "--done", stdin=stream + b"done\n")
