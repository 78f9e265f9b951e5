"""The time of a rebase up the ladder of releases, against `git rebase` of the same commits in a full checkout."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kunlunfork import commits, fork, git, gittree, messages
from kunlunfork.bench import machine, measure
from kunlunfork.bench.measure import Step, Timed
from kunlunfork.content import Content
from kunlunfork.errors import ForkError
from kunlunfork.objects import Repository, scratch
from kunlunfork.rebase import carry, engine, outline, start
from kunlunfork.rebase.engine import Rung
from kunlunfork.rebase.ladder import Releases
from kunlunfork.rebase.treestore import TreeStore
from kunlunfork.sources.base import Settings
from kunlunfork.store import Store

# Seconds for all merges, warm: what issue 7 asks for.
LIMIT = 3.0
MERGES, COMMAND, GIT = "merges", "kunlunfork rebase --dry-run", "git rebase"


@dataclass
class _Field:
    """What competes: the fork, its releases, and a checkout for git."""

    content: Content
    fork: fork.Fork
    store: Store
    settings: Settings
    rungs: Sequence[Rung]
    checkout: Path
    heads: list[str] = field(default_factory=list)
    series: str = ""
    carried: dict[str, list[str]] = field(default_factory=dict)

    def merges(self, folder: Path) -> None:
        """All merges and checks, with nothing remembered from the round before."""
        del folder
        for known in (carry._checked, carry._anchored, outline.read):
            known.cache_clear()
        with scratch(self.store.path / "objects", gittree.ATTRIBUTES) as repository, TreeStore(repository) as trees:
            first = start.changes(trees, self.rungs[0].tree, self.fork.pin, self.fork.patches)
            run = engine.run(trees, self.rungs[0], first, self.rungs[1:], known=lambda conflict: None, skipped={})
        self.carried[MERGES] = [change.name for change in run.changes]

    def command(self, folder: Path) -> None:
        """What a person types, from the start of Python to the table."""
        del folder
        args = ["rebase", "--onto", self.rungs[-1].version, "--from", self.rungs[0].version, "--dry-run", "--offline"]
        done = subprocess.run(
            [sys.executable, "-m", "kunlunfork", *args, "--repo", self.content.root], capture_output=True, check=False
        )
        if done.returncode not in (0, 3):
            raise ForkError("kunlunfork rebase failed", found=done.stderr.decode(errors="replace"))

    def prepare(self) -> None:
        """A checkout in which the releases are commits, each the parent of the next, and the series a branch."""
        git.run(["init", "--quiet", "--template=", self.checkout])
        repository = Repository(self.checkout / ".git")
        (repository.path / "objects" / "info" / "alternates").write_text(f"{self.store.path / 'objects'}\n")
        (repository.path / "info").mkdir(exist_ok=True)
        (repository.path / "info" / "attributes").write_text(gittree.ATTRIBUTES)
        for rung in self.rungs:
            text = messages.Text("bench", "bench@invalid", 0, "+0000", f"vLLM {rung.version}", b"", ())
            self.heads.append(commits.write(repository, rung.tree, self.heads[-1] if self.heads else None, text))
        last = self.heads[0]
        with TreeStore(repository) as trees:
            made = start.changes(trees, self.rungs[0].tree, self.fork.pin, self.fork.patches)
        for patch, change in zip(self.fork.patches, made, strict=True):
            last = commits.write(repository, change.after, last, messages.of_patch(patch, self.fork.pin.version))
        self.series = last

    def reset(self, folder: Path) -> None:
        del folder
        self._git("checkout", "--quiet", "--force", "-B", "series", self.series)

    def rebase(self, folder: Path) -> None:
        """One `git rebase` a release; a commit that conflicts is skipped."""
        del folder
        for old, new in zip(self.heads[:-1], self.heads[1:], strict=True):
            todo: tuple[str, ...] = ("rebase", "--quiet", "--onto", new, old, "series")
            while True:
                try:
                    self._git(*todo)
                    break
                except git.GitFailed:
                    if not (self.checkout / ".git" / "rebase-merge").exists():
                        raise
                    todo = ("rebase", "--skip")
        subjects = self._git("log", "--reverse", "--format=%s", f"{self.heads[-1]}..series").decode().splitlines()
        names = {patch.header.subject: patch.name for patch in self.fork.patches}
        self.carried[GIT] = [names[subject] for subject in subjects]

    def _git(self, *args: str) -> bytes:
        return git.run(args, cwd=self.checkout, env={"GIT_EDITOR": "true"})


def bench_ladder(
    content: Content, begin: str | None, onto: str, rounds: int, folder: Path, settings: Settings
) -> tuple[dict[str, Any], tuple[Timed, ...]]:
    """Time all three in turns, in a folder of their own below `folder` that is removed at the end.

    Raises:
        ForkError: a release cannot be had, or one of the three failed.
    """
    store = Store(settings.cache.store)
    releases = Releases(content, store, settings)
    own = fork.load(content, begin or content.versions()[0])
    versions = (own.pin.version, *releases.between(own.pin.version, onto))
    rungs = [Rung(version, releases.base(version).tree) for version in versions]
    here = machine.look(folder)
    with tempfile.TemporaryDirectory(prefix=".kunlunfork-bench-", dir=folder) as name:
        at = _Field(content, own, store, settings, rungs, Path(name).resolve() / "checkout")
        at.prepare()
        steps = (
            Step(MERGES, f"{len(own.patches)} patches, {len(rungs) - 1} releases", at.merges),
            Step(COMMAND, "the whole command", at.command),
            Step(GIT, "the same commits in a full checkout, conflicts skipped", at.rebase, at.reset),
        )
        timed = measure.in_turns(steps, rounds, Path(name), lambda round_: None, settings.progress)
    merges, _, theirs = timed
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": machine.clone_commit(content.root),
        "machine": asdict(here),
        "load_after": machine.load(),
        "releases": list(versions),
        "patches": len(own.patches),
        "carried": at.carried,
        "seconds": {
            t.step.name: {"median": t.median, "least": t.least, "cpu": t.cpu, "others": t.others} for t in timed
        },
        "ratio_git_rebase_to_merges": theirs.median / merges.median,
        "limit_merges": LIMIT,
        "met": merges.least <= LIMIT,
    }, timed  # fmt: skip
