"""The store: one private bare repository with every imported release, so that the base of a merge is always there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kunlunfork import fastimport, git, paths
from kunlunfork.errors import ForkError
from kunlunfork.filelocks import held
from kunlunfork.git import GitFailed
from kunlunfork.objects import Repository
from kunlunfork.paths import SYMLINK
from kunlunfork.pins import Pin
from kunlunfork.sources.members import Checked, Member

_REFS = "refs/kunlunfork/bases/"
_MARKER = "kunlunfork"

# What git says where the store is whole but cannot be used: mending it would not help.
_HINDERED = re.compile(
    r"No space left|Disk quota|Permission denied|Operation not permitted|Read-only file system|Input/output error"
    r"|Cannot allocate memory|out of memory|Too many open files|File too large|unable to create thread"
)


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


class Store(Repository):
    """The repository at `path`, which is made when something is first stored.

    Raises (every method): ForkError where git is missing, too old, or fails; where the store is damaged or another's.
    """

    def __init__(self, path: Path) -> None:
        git.check_version()
        super().__init__(Path(os.path.realpath(path)))  # unlike resolve, it takes a loop of links as it is

    @property
    def _beside(self) -> tuple[Path, Path]:
        """A store that is being made, and one that is being deleted."""
        new, old = (f"{self.path.name}.kunlunfork-{what}" for what in ("new", "old"))
        return self.path.with_name(new), self.path.with_name(old)

    def is_there(self) -> bool:
        """Whether something was stored (raises `ForkError` where the folder holds something else)."""
        try:
            if (self.path / _MARKER).is_file():
                return True
            if not self.path.exists() or not any(self.path.iterdir()):
                return False
        except OSError as e:
            raise ForkError(f"the store {self.path} cannot be read", found=e.strerror or str(e)) from e
        raise ForkError(
            f"{self.path} is not a store of kunlunfork",
            found="other files, which are left alone",
            expected=f"a store with its marker, the file {_MARKER}",
            fix="move it away, or name another cache folder: KUNLUNFORK_CACHE=DIR",
        )

    def _create(self) -> None:
        new, old = self._beside
        with self._changing(), held(self.path.with_name(f"{self.path.name}.lock")):
            if self.is_there():
                return
            for left in (new, old):
                if left.exists():
                    shutil.rmtree(left)
            git.run(["init", "--quiet", "--bare", "--template=", new])
            (new / "info").mkdir(exist_ok=True)
            (new / "info" / "attributes").write_text(git.ATTRIBUTES)
            (new / _MARKER).write_text("1\n")
            new.rename(self.path)

    def delete(self) -> None:
        """Delete the store, whatever its state (raises `ForkError` where it is not ours, or stays)."""
        new, old = self._beside
        if not (self.is_there() or new.exists() or old.exists()):
            return
        with self._changing(), held(self.path.with_name(f"{self.path.name}.lock")):
            for left in (new, old):
                if left.exists():
                    shutil.rmtree(left)
            if self.is_there():
                # Renamed first: a half-deleted store could have lost its marker, and then it would be nobody's.
                self.path.rename(old)
                shutil.rmtree(old)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as e:
            raise ForkError(
                f"the store {self.path} cannot be changed",
                found=e.strerror or str(e),
                fix="name another cache folder: KUNLUNFORK_CACHE=DIR",
            ) from e

    def git(self, *args: str | bytes | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        try:
            return super().git(*args, stdin=stdin, env=env)
        except GitFailed as e:
            raise self.failed(e) from e

    def failed(self, error: GitFailed) -> ForkError:
        """What a failure of git means: it does nothing here that can fail in a whole store."""
        found = f"{error.message}: " + "; ".join(dict.fromkeys((error.found or "").splitlines()))
        if error.returncode < 0 or _HINDERED.search(error.found or ""):
            return ForkError(
                f"the store {self.path} cannot be used",
                found=found,
                fix="see to what git says, or name another cache folder: KUNLUNFORK_CACHE=DIR",
            )
        return self.damaged(found)

    def damaged(self, found: str) -> ForkError:
        return ForkError(
            f"the store {self.path} is damaged", found=found,
            fix="kunlunfork cache prune --all, then run the command again",
        )  # fmt: skip

    def bases(self) -> tuple[Base, ...]:
        """Every upstream tree that is stored."""
        if not self.is_there():
            return ()
        out = self.git("for-each-ref", "--format=%(refname)%00%(contents:subject)", _REFS)
        found = []
        for line in out.splitlines():
            ref, _, subject = line.partition(b"\0")
            try:
                if not ref.startswith(f"{_REFS}git/".encode()):
                    found.append(Base(**json.loads(subject)))
                else:
                    _, version, origin = ref.decode().removeprefix(_REFS).split("/", 2)
                    found.append(self._git_base(version, origin, ref.decode()))
            except (ValueError, TypeError, IndexError) as e:
                raise self.damaged(f"{paths.show(ref)} says nothing of a release ({e})") from e
        return tuple(found)

    def _git_base(self, version: str, commit: str, ref: str) -> Base:
        tree = self.git("rev-parse", f"{ref}^{{tree}}").decode().strip()
        sizes = [int(line.split(None, 4)[3]) for line in self.git("ls-tree", "-r", "-l", tree).splitlines()]
        return Base("git", version, commit, tree, len(sizes), sum(sizes))

    def has(self, name: str) -> bool:
        """Whether an object is there."""
        try:
            super().git("cat-file", "-e", name)
        except GitFailed:
            return False
        return True

    def find(self, kind: str, version: str, origin: str | None = None) -> Base | None:
        for base in self.bases():
            if (base.kind, base.version) == (kind, version) and origin in (None, base.origin):
                return base
        return None

    def release(self, pin: Pin, kind: str) -> Base | None:
        """The tree of a pin as its `sdist` has it, or its `git` commit; no other of the same version."""
        for base in self.bases():
            same = base.origin == pin.sdist_sha256 if kind == "sdist" else base.origin.startswith(pin.commit)
            if (base.kind, base.version) == (kind, pin.version) and same:
                return base
        return None

    def import_members(self, kind: str, version: str, origin: str, members: Iterable[Member]) -> Base:
        """Store a tree, streaming its files into `git fast-import`.

        All or nothing: the reference that names the tree is made last.
        """
        with self._alone():
            known = self.find(kind, version, origin)
            if known is not None:
                return known
            try:
                tree, files, size = self._fast_import(members)
            except GitFailed as e:
                raise self.failed(e) from e
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
            ForkError: the repository or the tag is not there, or the tag names another commit, or its tree is hostile.
        """
        with self._alone():
            incoming = f"refs/kunlunfork/import/{tag}"
            try:
                with git.trusted_folders() as trusted:
                    super().git(
                        "fetch", "--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head", "--force",
                        "--end-of-options", url, f"refs/tags/{tag}:{incoming}",
                        env={"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", **trusted},
                    )  # fmt: skip
            except GitFailed as e:
                found = (e.found or "").replace(url, shown)
                raise ForkError(
                    f"{tag} cannot be fetched from {shown}",
                    found=found,
                    expected=f"a git repository of vLLM with the tag {tag}",
                    fix="trust it with the command that git names"
                    if "safe.directory" in found
                    else "name another source: --source git:URL-or-PATH, or --source pypi",
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
            self._check(commit, shown)
            ref = f"{_REFS}git/{version}/{commit}"
            self.git("update-ref", ref, commit)
            return self._git_base(version, commit, ref)

    def fetch_commit(self, url: str, commit: str, *, shown: str) -> str:
        """Bring in one commit of a repository on this machine, for a while, and return the id of its tree.

        No reference is left: it goes with the next `cache prune`, and is fetched again.

        Raises:
            ForkError: it cannot be fetched, or its tree is hostile.
        """
        with self._alone():
            with contextlib.suppress(ForkError):  # where it is not here yet
                return self.git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}").decode().strip()
            with git.trusted_folders() as trusted:
                try:
                    super().git(
                        "fetch", "--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head", "--end-of-options", url,
                        f"{commit}:refs/kunlunfork/import/{commit}", env={"GIT_ALLOW_PROTOCOL": "file", **trusted},
                    )  # fmt: skip
                except GitFailed as e:
                    raise ForkError(
                        f"commit {commit} cannot be fetched from {shown}", found=e.found, expected="a clone of vLLM"
                    ) from e
            self.git("update-ref", "-d", f"refs/kunlunfork/import/{commit}")
            self._check(commit, shown)
            return self.git("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def _check(self, commit: str, shown: str) -> None:
        """Refuse a tree that could not come from an archive either: a pin may know only 9 digits of its commit."""
        entries = self.entries(commit)
        links = self.read({p: e for p, e in entries.items() if e.mode == SYMLINK})
        checked = Checked(shown)
        for path, entry in entries.items():
            checked.add(path, entry.mode, links[path][1] if entry.mode == SYMLINK else b"")
        checked.end()

    def drop(self, base: Base) -> None:
        with self._alone():
            self.git("update-ref", "-d", base.ref)

    def collect(self) -> None:
        """Delete what no base needs any more."""
        with self._alone():
            self.git("reflog", "expire", "--expire=now", "--all")
            self.git("prune", "--expire=now")
            self.git("-c", "core.compression=0", "-c", "pack.compression=0", "repack", "-a", "-d", "-q")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Make the store if need be, and be the only one who changes it."""
        if not self.is_there():
            self._create()
        with held(self.path / "change.lock"):
            self._sweep()
            try:
                yield
            finally:
                self._sweep()

    def _sweep(self) -> None:
        """Remove what a git that failed or was killed has left; whoever holds the lock knows that none is at work."""
        left = [*self.path.glob("fast_import_crash_*"), *self.path.glob("packed-refs.lock")]
        left += [*self.path.glob("objects/pack/tmp_*"), *self.path.glob("objects/pack/.tmp-*")]
        left += self.path.glob("refs/kunlunfork/**/*.lock")
        left += [p for p in self.path.glob("refs/kunlunfork/import/**/*") if p.is_file()]
        with self._changing():
            for file in left:
                file.unlink(missing_ok=True)
