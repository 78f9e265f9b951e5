"""Where a rebase goes: a release, or a commit of a repository that is no release yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import git
from kunlunfork.errors import ForkError
from kunlunfork.rebase.ladder import Releases
from kunlunfork.store import Store

GIT = "git:"


@dataclass(frozen=True)
class Target:
    """`version` names it; `tree` is known where it is a commit. `last` is the last release before it, if git knows."""

    version: str
    tree: str | None = None
    last: str | None = None

    @property
    def is_release(self) -> bool:
        return self.tree is None


def find(text: str, releases: Releases, store: Store) -> Target:
    """Understand `--onto` (raises `ForkError`)."""
    if not text.startswith(GIT):
        return Target(releases.canonical(text))
    where, at, rev = text.removeprefix(GIT).rpartition("@")
    if not at or not where or not rev:
        raise ForkError(f"{text!r} names no commit", expected="git:PATH@REV", fix="name one, such as git:../vllm@main")
    path = Path(where)
    if not path.is_dir():
        raise ForkError(
            f"{where} is not a folder", expected="a clone of vLLM on this machine", fix="git clone it first"
        )
    with git.trusted_folders() as trusted:
        try:
            commit = git.run(
                ["rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}"], cwd=path, env=trusted
            ).decode().strip()  # fmt: skip
        except git.GitFailed as e:
            raise ForkError(
                f"{where} has no commit {rev}", found=e.found, expected="a branch, tag or commit of a clone of vLLM"
            ) from e
        try:
            git.run(["cat-file", "-e", f"{commit}:vllm"], cwd=path, env=trusted)
        except git.GitFailed as e:
            raise ForkError(
                f"{where} has no folder vllm at {rev}", expected="a clone of vLLM", fix="name one: git:PATH@REV"
            ) from e
        last = _last_release(path, commit, trusted)
    tree = store.fetch_commit(path.resolve().as_uri(), commit, shown=where)
    return Target(f"{rev}@{commit[:9]}" if not commit.startswith(rev) else commit[:9], tree, last)


def _last_release(path: Path, commit: str, env: dict[str, str]) -> str | None:
    args = ["describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "--exclude=*rc*", "--exclude=*dev*", commit]
    try:
        found = git.run(args, cwd=path, env=env).decode().strip()
    except git.GitFailed:
        return None  # a shallow clone, or one without tags
    match = re.fullmatch(r"v(\d+\.\d+\.\d+(\.post\d+)?)", found)
    return match[1] if match else None
