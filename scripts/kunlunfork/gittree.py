"""A fork tree as a git repository: a commit for upstream, one for each patch, one for the overlay.

The commits are made from the release and the fork alone: the same fork gives the same ids everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kunlunfork import commits, git, messages, paths
from kunlunfork.errors import ForkError
from kunlunfork.fork import STAMP_PATH, Fork
from kunlunfork.messages import Text
from kunlunfork.objects import Repository, scratch
from kunlunfork.paths import Entry
from kunlunfork.sources.tree import git_state
from kunlunfork.stages import Files, stages
from kunlunfork.store import Base, Store

# What the last apply made of the fork.
APPLIED = "refs/kunlunfork/applied"
UPSTREAM = "upstream"
# Byte for byte, whatever the user's configuration is; diff and merge work as they do for anyone.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"


def state(root: Path) -> Path:
    """Where the lock and the pre-images of a git tree lie."""
    return git_state(root)


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
    repository.git("update-ref", f"refs/heads/{UPSTREAM}", first_of(repository, head))
    repository.git("update-ref", APPLIED, head)
    repository.git("read-tree", head)
    # Exit status 1 where a file differs from its commit, which then is a fault of ours.
    git.run(["update-index", "-q", "--refresh"], cwd=root)


def write_commits(repository: Repository, fork: Fork, base_tree: str, before: Files) -> str:
    """Write the commits of the fork, and no branch; returns the last one's id."""
    date = (0, "+0000")
    pin = fork.pin
    own = ("kunlunfork", "kunlunfork@invalid", *date)
    text = Text(*own, f"vLLM {pin.version}", f"{pin.tag}, {pin.commit}".encode(), ((messages.BASE, pin.version),))
    last = commits.write(repository, base_tree, None, text)
    # Not in the repository: a killed command would leave a lock there.
    with tempfile.TemporaryDirectory(prefix="kunlunfork-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        repository.git("read-tree", base_tree, env=index)
        found = stages(fork.patches, before)
        for patch, was, now in zip(fork.patches, found[:-1], found[1:], strict=True):
            tree = _tree(repository, index, was, now)
            last = commits.write(repository, tree, last, messages.of_patch(patch, pin.version))
        files = {path: value for path, value in fork.added.items() if path != STAMP_PATH}
        if files:
            tree = _tree(repository, index, {}, files)
            fields = ((messages.OVERLAY, pin.version),)
            last = commits.write(repository, tree, last, Text(*own, f"Overlay for vLLM {pin.version}", b"", fields))
    return last


def first_of(repository: Repository, commit: str) -> str:
    """The commit of upstream's that the commits of a fork start from."""
    return repository.git("rev-list", "--max-parents=0", commit).decode().split()[-1]


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
        ForkError: it has none, or its repository belongs to someone else (what its configuration says would be done),
            or it is shallow.
    """
    _check_owner(root / ".git")
    try:
        commit = run(root, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    except git.GitFailed as e:
        raise ForkError(
            f"{root} has no commit that can be read", found=e.found, expected="a tree of kunlunfork apply --git"
        ) from e
    if run(root, "rev-parse", "--is-shallow-repository").strip() == b"true":
        raise ForkError(
            f"{root} is shallow: it lacks the commit of upstream's files", expected="the whole history",
            fix=f"git -C {shlex.quote(str(root))} fetch --unshallow, or make a new git tree beside it",
        )  # fmt: skip
    return commit


def _check_owner(folder: Path) -> None:
    user, owner = os.geteuid(), folder.lstat().st_uid
    if owner not in (user, 0):
        raise ForkError(
            f"{folder} belongs to someone else", found=f"user {owner}", expected=f"user {user}",
            fix="clone it, and work in your clone: git clone",
        )  # fmt: skip


def git_dir(root: Path) -> Path:
    return Path(os.fsdecode(run(root, "rev-parse", "--path-format=absolute", "--git-dir").removesuffix(b"\n")))


@contextlib.contextmanager
def reading(root: Path) -> Iterator[Repository]:
    """A repository for the length of a block that sees the objects of a git tree's, which is only read."""
    with scratch(_objects(root), ATTRIBUTES) as repository:
        yield repository


def _objects(root: Path) -> Path:
    common = run(root, "rev-parse", "--path-format=absolute", "--git-common-dir").removesuffix(b"\n")
    return Path(os.fsdecode(common)) / "objects"


@contextlib.contextmanager
def writing(root: Path) -> Iterator[Repository]:
    """The same, whose objects stay in the git tree."""
    with reading(root) as repository:
        yield repository
        names = [file for file in (repository.path / "objects").rglob("*") if file.is_file() and len(file.name) == 38]
        common = _objects(root)
        for file in names:
            target = common / file.parent.name / file.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                shutil.copy2(file, target)


def advance(root: Path, commit: str) -> None:
    """Move the branch on to a commit whose files are those in the work tree already."""
    run(root, "update-ref", "-m", "kunlunfork export --include-worktree", "HEAD", commit)
    run(root, "read-tree", commit)
    # Exit status 1 where a file was edited since.
    with contextlib.suppress(git.GitFailed):
        run(root, "update-index", "-q", "--refresh")


def worktree(root: Path, repository: Repository) -> str:
    """The id of the tree that the files make now, committed or not, without what git ignores (in `repository`).

    Repositories inside the tree are left out. The index that it was made with stays: see `worktree_index`.

    Raises:
        ForkError: git cannot read the files or its index.
    """
    env = worktree_index(repository)
    try:
        shutil.copy2(index_of(root), env["GIT_INDEX_FILE"])
    except FileNotFoundError:
        run(root, "read-tree", "HEAD", env=env)
    try:
        _look_at_all(root, env)
        run(root, "add", "--update", env=env)
        others = run(root, "ls-files", "-z", "--others", "--exclude-standard", env=env).split(b"\0")[:-1]
        new = [name for name in others if not name.endswith(b"/")]
        run(root, "update-index", "--add", "-z", "--stdin", stdin=b"".join(n + b"\0" for n in new), env=env)
        return run(root, "write-tree", env=env).decode().strip()
    except git.GitFailed as e:
        where = shlex.quote(str(root))
        own = shlex.quote(str(index_of(root)))
        damaged = b"index file" in e.stderr
        raise ForkError(
            f"git cannot read {'its index of ' if damaged else 'the files in '}{root}", found=e.found,
            fix=f"rm {own} && git -C {where} reset" if damaged else "move what git names out of the way; "
            f"git -C {where} checkout -- FILE brings a file back",
        ) from e  # fmt: skip


def worktree_index(repository: Repository) -> dict[str, str]:
    """The environment in which git uses the index of `worktree`, and writes objects to `repository` alone."""
    objects = repository.path / "objects"
    return {
        "GIT_INDEX_FILE": str(repository.path / "worktree-index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fsdecode((objects / "info" / "alternates").read_bytes()).strip(),
    }


def staged(root: Path, repository: Repository) -> str:
    """The id of the tree that the index makes (raises `ForkError`: it has conflicts, or is damaged)."""
    env = worktree_index(repository)
    del env["GIT_INDEX_FILE"]
    return run(root, "write-tree", env=env).decode().strip()


def index_of(root: Path) -> Path:
    """The index that the user's git has."""
    own = run(root, "rev-parse", "--path-format=absolute", "--git-path", "index").removesuffix(b"\n")
    return Path(os.fsdecode(own))


def _look_at_all(root: Path, env: Mapping[str, str]) -> None:
    """Undo what the user told git not to look at (--assume-unchanged, --skip-worktree), in an index of ours."""
    flagged = [line for line in run(root, "ls-files", "-v", "-z", env=env).split(b"\0")[:-1] if line[:1] != b"H"]
    for option, names in (
        ("--no-assume-unchanged", [line[2:] for line in flagged if line[:1].islower()]),
        (
            "--no-skip-worktree",
            [x[2:] for x in flagged if x[:1] in b"sS" and os.path.lexists(paths.on_disk(root, x[2:]))],
        ),
    ):
        if names:
            run(root, "update-index", option, "-z", "--stdin", stdin=b"".join(n + b"\0" for n in names), env=env)


def run(root: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """Run git on the tree, on its own .git and none above, whoever owns it (raises `GitFailed`)."""
    return git.run([f"--work-tree={root}", *args], git_dir=root / ".git", cwd=root, stdin=stdin, env=env)


def applied(root: Path) -> str:
    """The commit that the last apply made (raises `ForkError` where the record of it is gone)."""
    try:
        return run(root, "rev-parse", "--verify", "--quiet", f"{APPLIED}^{{commit}}").decode().strip()
    except git.GitFailed as e:
        raise ForkError(
            f"{root} does not say which commit the last apply made", found=f"no {APPLIED}",
            expected="a tree that kunlunfork apply --git made",
            fix="make a new git tree beside it, and git cherry-pick your commits there",
        ) from e  # fmt: skip


def kin(root: Path) -> ForkError | None:
    """What to say of a tree whose .git is not what `apply --git` made, and whose commits are; None for any other."""
    try:
        own, common = (
            Path(os.fsdecode(run(root, "rev-parse", "--path-format=absolute", option).removesuffix(b"\n")))
            for option in ("--git-dir", "--git-common-dir")
        )
        said = run(root, "log", "-50", "--format=%B", "HEAD").splitlines()
    except ForkError:  # no repository, no commit, no git
        return None
    if (common / git_state(root).name).is_dir():
        if own == common:
            where, git_folder = shlex.quote(str(root / ".git")), shlex.quote(str(common))
            return ForkError(
                f"the git folder of {root} lies elsewhere", found=str(common), expected=str(root / ".git"),
                fix=f"bring it back: rm {where} && mv {git_folder} {where}",
            )  # fmt: skip
        first = run(root, "worktree", "list", "--porcelain", "-z").split(b"\0")[0].removeprefix(b"worktree ")
        return ForkError(
            f"{root} is a git worktree of a fork tree", expected="the tree that kunlunfork apply --git made",
            fix=f"name that tree, and git switch there: {shlex.quote(os.fsdecode(first))}",
        )  # fmt: skip
    names = tuple(f"{name}: ".encode() for name in (messages.BASE, messages.PATCH, messages.OVERLAY))
    if any(line.startswith(names) for line in said):
        return ForkError(
            f"{root} is a clone of a fork tree, without the record of what apply did",
            expected="the tree that kunlunfork apply --git made",
            fix="fetch your commits into the tree that apply made, and go on there",
        )
    return None


def base_commit(root: Path) -> str:
    """The commit of upstream's files, from which the commits that apply made start (raises `ForkError`)."""
    return run(root, "rev-list", "--max-parents=0", APPLIED).decode().split()[-1]


def base_of(root: Path) -> str:
    """The tree of upstream's files, from which the fork's commits start (raises `ForkError`)."""
    head(root)
    applied(root)
    return run(root, "rev-parse", f"{base_commit(root)}^{{tree}}").decode().strip()
