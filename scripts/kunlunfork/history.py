"""The commits of a git tree, from upstream to HEAD, put in order: what each patch is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kunlunfork import commits, messages
from kunlunfork.commits import Commit
from kunlunfork.errors import CONFLICT, ForkError
from kunlunfork.git import GitFailed
from kunlunfork.objects import Repository

# A git tree has a commit for each patch and what its user made since; more than this is another repository.
_MOST = 2000
_JOINS = re.compile(r"(fixup|squash|amend)! +")
_UNDER_WAY = {
    "rebase-merge": "git rebase --continue", "rebase-apply": "git rebase --continue (or git am --continue)",
    "MERGE_HEAD": "git merge --continue", "CHERRY_PICK_HEAD": "git cherry-pick --continue",
    "REVERT_HEAD": "git revert --continue",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One change: a commit and the `fixup!`, `squash!` and `amend!` commits that belong to it.

    `before` and `after` are the ids of the trees around it, where all groups lie in order.
    """

    commits: tuple[Commit, ...]
    text: messages.Text
    before: str = ""
    after: str = ""

    @property
    def first(self) -> Commit:
        return self.commits[0]

    @property
    def patch(self) -> str | None:
        """The name of its patch, where the commit has one."""
        return self.text.get(messages.PATCH)

    @property
    def is_overlay(self) -> bool:
        return self.text.get(messages.OVERLAY) is not None


@dataclass(frozen=True)
class History:
    """What lies between upstream and HEAD. `version` is the pin that upstream's commit names."""

    version: str
    base: Commit
    head: Commit
    groups: tuple[Group, ...]


def check_idle(git_dir: Path) -> None:
    """Refuse a repository in the middle of a rebase, merge or the like (raises `ForkError`, exit 3)."""
    for name, fix in _UNDER_WAY.items():
        if (git_dir / name).exists():
            raise ForkError(
                f"{git_dir.parent} is in the middle of something", found=f"{git_dir.name}/{name}",
                expected="a branch that is as you want it", fix=f"{fix}, or its --abort", exit_code=CONFLICT,
            )  # fmt: skip


def read(repository: Repository, head: str, where: Path) -> History:
    """Read the commits of a git tree.

    Args:
        repository: where git objects may be written to; it sees those of the tree.
        head: the id of the tree's commit.
        where: the tree, for messages.

    Raises:
        ForkError: HEAD does not descend from a commit of upstream's that `apply --git` made; a merge; a `fixup!` of
            nothing; (exit 3) commits that conflict where they have to change places.
    """
    line = _line(repository, head, where)
    base, rest = line[0], line[1:]
    version = base.text.get(messages.BASE)
    assert version is not None
    return History(version, base, line[-1], _lay(repository, _group(rest, where), base, line))


def base(repository: Repository, head: str, where: Path) -> Commit:
    """The commit of upstream's that `head` descends from (raises as `read`)."""
    return _line(repository, head, where)[0]


def _line(repository: Repository, at: str, where: Path) -> tuple[Commit, ...]:
    """The commits from upstream's to this one."""
    found: list[Commit] = []
    while len(found) < _MOST:
        try:
            [commit] = commits.read(repository, [at])
        except GitFailed as e:
            raise _foreign(where, f"commit {at[:10]} is not there (a shallow clone?)") from e
        found.append(commit)
        if commit.text.get(messages.BASE) is not None:
            if commit.parents:
                raise ForkError(
                    f"{where}: a commit says that it is upstream's, and others lie below it",
                    found=f"`{messages.BASE}` in commit {commit.shown}", expected="that line in the first commit alone",
                    fix="take the line out of its message: git rebase -i upstream", exit_code=CONFLICT,
                )  # fmt: skip
            return tuple(reversed(found))
        if len(commit.parents) > 1:
            raise ForkError(
                f"{where} has a merge, and a series is a line of patches", found=f"commit {commit.shown}",
                fix="make it a line: git rebase upstream", exit_code=CONFLICT,
            )  # fmt: skip
        if not commit.parents:
            raise _foreign(where, f"the history starts with commit {commit.shown}")
        at = commit.parents[0]
    raise _foreign(where, f"more than {_MOST} commits")


def _foreign(where: Path, found: str) -> ForkError:
    return ForkError(
        f"{where} has no history of a fork",
        found=found,
        expected=f"a commit of upstream's with the line `{messages.BASE}: VERSION`",
        fix="make a git tree: kunlunfork apply --vllm 0.25.1 --git TREE",
    )


def _group(line: Sequence[Commit], where: Path) -> list[Group]:
    groups: list[Group] = []
    for commit in line:
        joined = _JOINS.match(commit.text.subject)
        if joined is None:
            groups.append(Group((commit,), commit.text))
            continue
        rest = commit.text.subject
        while match := _JOINS.match(rest):
            rest = rest[match.end() :]
        at = _target(groups, rest)
        if at is None:
            raise ForkError(
                f"{where}: a commit joins another that is not there", found=f"commit {commit.shown}",
                expected=f"an earlier commit {rest!r}", fix="reword it: git rebase -i upstream",
            )  # fmt: skip
        own = groups[at]
        groups[at] = replace(own, commits=(*own.commits, commit), text=_joined(own.text, commit.text, joined[1]))
    return groups


def _target(groups: Sequence[Group], name: str) -> int | None:
    """Which group `fixup! NAME` means, as git finds it: by subject, by id, by the start of the subject."""
    firsts = [group.first for group in groups]
    same = [i for i, commit in enumerate(firsts) if commit.text.subject == name]
    by_id = [i for i, commit in enumerate(firsts) if len(name) >= 4 and commit.id.startswith(name)]
    starts = [i for i, commit in enumerate(firsts) if commit.text.subject.startswith(name)]
    return next(iter([*same, *by_id, *starts]), None)


def _joined(text: messages.Text, other: messages.Text, how: str) -> messages.Text:
    """The message of a commit and one that joins it: fixup keeps it, squash adds to it, amend takes its place."""
    if how == "fixup" or (how == "squash" and not other.body):
        return text
    if how == "squash":
        return replace(text, body=b"\n\n".join(part for part in (text.body, other.body) if part))
    # git writes the whole new message into the body of an `amend!` commit.
    fields = b"\n".join(f"{k}: {v}".encode("utf-8", "surrogateescape") for k, v in other.fields)
    message = b"\n\n".join(part for part in (other.body, fields) if part)
    new = messages.parse_message(message, text.name, text.mail, text.time, text.zone)
    names = {messages.PATCH.lower(), messages.PIN.lower(), messages.OVERLAY.lower()}
    kept = tuple(f for f in text.fields if f[0].lower() in names and new.get(f[0]) is None)
    return replace(new, fields=(*new.fields, *kept))


def _lay(repository: Repository, groups: Sequence[Group], base: Commit, line: Sequence[Commit]) -> tuple[Group, ...]:
    trees = {commit.id: commit.tree for commit in line}
    now = base.tree
    laid = []
    for group in groups:
        before = now
        for commit in group.commits:
            parent = trees[commit.parents[0]]
            now = commit.tree if now == parent else pick(repository, now, parent, commit)
        laid.append(replace(group, before=before, after=now))
    if now != line[-1].tree:
        raise ForkError(
            "the commits do not give the same files when fixup! commits join theirs",
            fix="settle it yourself: git rebase -i --autosquash upstream",
            exit_code=CONFLICT,
        )
    return tuple(laid)


def pick(repository: Repository, onto: str, parent: str, commit: Commit) -> str:
    """The tree after what `commit` did to the tree `parent` is done to the tree `onto` (raises `ForkError`, exit 3)."""
    text = messages.Text("kunlunfork", "kunlunfork@invalid", 0, "+0000", "pick", b"", ())
    root = commits.write(repository, parent, None, text)
    ours, theirs = (commits.write(repository, tree, root, text) for tree in (onto, commit.tree))
    try:
        return repository.git("merge-tree", "--write-tree", "--no-messages", ours, theirs).decode().split()[0]
    except GitFailed as e:
        if e.returncode != 1:
            raise
        raise ForkError(
            f"commit {commit.shown} cannot join its commit: what lies between edits the same lines",
            fix="settle it yourself: git rebase -i --autosquash upstream",
            exit_code=CONFLICT,
        ) from e
