"""A fork tree as a git repository: a commit for upstream, one for each patch, one for the overlay.

The commits are made from the release and the fork alone: the same fork gives the same ids everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from kunlunfork import commits, git, messages, paths
from kunlunfork import fork as forks
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.fork import STAMP_PATH, Files, Fork
from kunlunfork.messages import Text
from kunlunfork.objects import Repository, scratch
from kunlunfork.paths import Entry
from kunlunfork.sources.tree import git_state
from kunlunfork.store import Base, Store

# What the last apply made of the fork.
APPLIED = "refs/kunlunfork/applied"
UPSTREAM = "upstream"
# Byte for byte, whatever the user's configuration is; diff and merge work as they do for anyone.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"


def state(root: Path) -> Path:
    """Where the lock and the pre-images of a git tree lie."""
    return git_state(root)


def is_git_tree(root: Path) -> bool:
    return state(root).is_dir()


def branch(version: str) -> str:
    return f"kunlun-{version}"


def make(root: Path, fork: Fork, base: Base, before: Files, store: Store) -> None:
    """Make the files in `root`, which are those of the fork, the work tree of a new repository.

    Args:
        before: what upstream has at each of `fork.touched`.

    Raises:
        ForkError: git fails.
    """
    git.run(["init", "--quiet", "--template=", root])
    repository = Repository(root / ".git")
    (repository.path / "info").mkdir(exist_ok=True)
    (repository.path / "info" / "attributes").write_text(ATTRIBUTES)
    (repository.path / "info" / "exclude").write_text(f"/{STAMP_PATH.decode()}\n__pycache__/\n/*.egg-info/\n")
    packed = store.git(
        "-c", "core.compression=1", "pack-objects", "--quiet", "--revs", "--stdout", "--window=0",
        stdin=base.tree.encode() + b"\n",
    )  # fmt: skip
    repository.git("index-pack", "--stdin", stdin=packed)
    head = write_commits(repository, fork, base.tree, before)
    repository.git("symbolic-ref", "HEAD", f"refs/heads/{branch(fork.pin.version)}")
    repository.git("update-ref", f"refs/heads/{branch(fork.pin.version)}", head)
    repository.git("update-ref", APPLIED, head)
    repository.git("read-tree", head)
    # Exit status 1 where a file differs from its commit, which then is a fault of ours.
    git.run(["update-index", "-q", "--refresh"], cwd=root)


def write_commits(repository: Repository, fork: Fork, base_tree: str, before: Files) -> str:
    """Write the commits of the fork and the branch of upstream; returns the last one's id."""
    date = (0, "+0000")
    pin = fork.pin
    own = ("kunlunfork", "kunlunfork@invalid", *date)
    text = Text(*own, f"vLLM {pin.version}", f"{pin.tag}, {pin.commit}".encode(), ((messages.BASE, pin.version),))
    last = commits.write(repository, base_tree, None, text)
    repository.git("update-ref", f"refs/heads/{UPSTREAM}", last)
    index = {"GIT_INDEX_FILE": str(repository.path / "kunlunfork-index")}
    try:
        repository.git("read-tree", base_tree, env=index)
        found = forks.stages(fork, before)
        for patch, was, now in zip(fork.patches, found[:-1], found[1:], strict=True):
            tree = _tree(repository, index, was, now)
            last = commits.write(repository, tree, last, messages.of_patch(patch, pin.version))
        files = {path: value for path, value in fork.added.items() if path != STAMP_PATH}
        if files:
            tree = _tree(repository, index, {}, files)
            fields = ((messages.OVERLAY, pin.version),)
            last = commits.write(repository, tree, last, Text(*own, f"Overlay for vLLM {pin.version}", b"", fields))
    finally:
        Path(index["GIT_INDEX_FILE"]).unlink(missing_ok=True)
    return last


def _tree(
    repository: Repository, index: Mapping[str, str], was: Mapping[bytes, object],
    now: Mapping[bytes, tuple[Entry, bytes]],
) -> str:  # fmt: skip
    """The tree after these files became others."""
    repository.put(data for _, data in now.values())
    lines = [b"0 %s\t%s\0" % (b"0" * 40, path) for path in was if path not in now]
    lines += [b"%o %s\t%s\0" % (e.mode, e.blob.encode(), path) for path, (e, _) in now.items()]
    repository.git("update-index", "-z", "--add", "--index-info", stdin=b"".join(lines), env=index)
    return repository.git("write-tree", env=index).decode().strip()


def head(root: Path) -> str:
    """The commit that a git tree is at.

    Raises:
        ForkError: it has none, or its repository belongs to someone else (what its configuration says would be done).
    """
    _check_owner(root / ".git")
    try:
        return _git(root, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    except git.GitFailed as e:
        raise ForkError(
            f"{root} has no commit that can be read", found=e.found, expected="a tree of kunlunfork apply --git"
        ) from e


def _check_owner(folder: Path) -> None:
    user, owner = os.geteuid(), folder.lstat().st_uid
    if owner not in (user, 0):
        raise ForkError(
            f"{folder} belongs to someone else", found=f"user {owner}", expected=f"user {user}",
            fix="clone it, and work in your clone: git clone",
        )  # fmt: skip


def git_dir(root: Path) -> Path:
    return Path(os.fsdecode(_git(root, "rev-parse", "--path-format=absolute", "--git-dir").removesuffix(b"\n")))


@contextlib.contextmanager
def reading(root: Path) -> Iterator[Repository]:
    """A repository for the length of a block that sees the objects of a git tree's, which is only read."""
    common = _git(root, "rev-parse", "--path-format=absolute", "--git-common-dir").removesuffix(b"\n")
    with scratch(Path(os.fsdecode(common)) / "objects", ATTRIBUTES) as repository:
        yield repository


@contextlib.contextmanager
def writing(root: Path) -> Iterator[Repository]:
    """The same, whose objects stay in the git tree."""
    with reading(root) as repository:
        yield repository
        names = [file for file in (repository.path / "objects").rglob("*") if file.is_file() and len(file.name) == 38]
        common = Path((repository.path / "objects" / "info" / "alternates").read_text().strip())
        for file in names:
            target = common / file.parent.name / file.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                shutil.copy2(file, target)


def advance(root: Path, commit: str) -> None:
    """Move the branch on to a commit whose files are those in the work tree already."""
    _git(root, "update-ref", "-m", "kunlunfork export --include-worktree", "HEAD", commit)
    _git(root, "read-tree", commit)
    # Exit status 1 where a file was edited since.
    with contextlib.suppress(git.GitFailed):
        _git(root, "update-index", "-q", "--refresh")


def worktree(root: Path, repository: Repository) -> str:
    """The id of the tree that the files make now, committed or not, without what git ignores (in `repository`)."""
    index = repository.path / "worktree-index"
    own = _git(root, "rev-parse", "--path-format=absolute", "--git-path", "index").removesuffix(b"\n")
    shutil.copyfile(os.fsdecode(own), index)
    objects = repository.path / "objects"
    env = {
        "GIT_INDEX_FILE": str(index),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": (objects / "info" / "alternates").read_text().strip(),
    }
    _git(root, "add", "--all", env=env)
    return _git(root, "write-tree", env=env).decode().strip()


def staged(root: Path, repository: Repository) -> str:
    """The id of the tree that the index makes (raises `ForkError`: it has conflicts, or is damaged)."""
    env = {
        "GIT_OBJECT_DIRECTORY": str(repository.path / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": (repository.path / "objects/info/alternates").read_text().strip(),
    }
    return _git(root, "write-tree", env=env).decode().strip()


def _git(root: Path, *args: str, env: Mapping[str, str] | None = None) -> bytes:
    # The work tree's own .git, whoever owns it; and only its own, not one above.
    return git.run([f"--work-tree={root}", *args], git_dir=root / ".git", cwd=root, env=env)


def base_commit(root: Path) -> str:
    """The commit of upstream's files, from which the commits that apply made start."""
    return _git(root, "rev-list", "--max-parents=0", APPLIED).decode().split()[-1]


def base_of(root: Path) -> str:
    """The tree of upstream's files, from which the fork's commits start."""
    return _git(root, "rev-parse", f"{base_commit(root)}^{{tree}}").decode().strip()


def update(root: Path, fork: Fork, before: Files, *, dry_run: bool) -> str:
    """Put the commits of a newer fork in the place of the ones that the last `apply` made.

    Files, index and branch follow. The commits that were there stay in the reflog.

    Returns:
        "updated", or "unchanged" where the branch is at these commits already.

    Raises:
        ForkError: (exit 3) commits or edits would be lost.
    """
    repository = Repository(git_dir(root))
    applied = _git(root, "rev-parse", "--verify", APPLIED).decode().strip()
    now = head(root)
    with reading(root) as repo:
        files = worktree(root, repo)
    made = write_commits(repository, fork, base_of(root), before)
    if made == applied:
        # The fork is the one that was applied; commits on top of it are the user's.
        return "unchanged"
    trees = {c: _git(root, "rev-parse", f"{c}^{{tree}}").decode().strip() for c in (applied, made)}
    if now == made and files == trees[made]:
        if not dry_run:
            repository.git("update-ref", APPLIED, made)
        return "unchanged"
    if not (now == applied and files in trees.values()) and files != trees[made]:
        what = "commits" if now != applied else "edits"
        raise ForkError(
            f"{root} has {what} that apply would lose",
            details=[*_ahead(root, applied), *_edited(root)],
            expected="the commits that the last apply made, or files that are those of the fork already",
            fix=f"kunlunfork export {shlex.quote(str(root))}; then run the command again",
            exit_code=CONFLICT,
        )
    if dry_run:
        return "updated"
    # Two-way: it refuses to write over anything that is not as in HEAD.
    _git(root, "read-tree", "-m", "-u", now, made) if files != trees[made] else _git(root, "read-tree", made)
    _git(root, "update-ref", "-m", "kunlunfork apply", "HEAD", made)
    repository.git("update-ref", APPLIED, made)
    _git(root, "update-index", "-q", "--refresh")
    return "updated"


def _ahead(root: Path, applied: str) -> list[str]:
    """The commits that are not what apply made."""
    log = _git(root, "log", "--format=%h %s", f"{applied}..HEAD").decode(errors="replace")
    return [f"commit {line}" for line in log.splitlines()]


def _edited(root: Path) -> list[str]:
    names = _git(root, "diff", "--name-only", "-z", "HEAD").split(b"\0")[:-1]
    return [f"{paths.show(name)}: edited" for name in names]
