"""Who competes in `bench rebase`: each moves every edit to the other release, or refuses."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunlunfork import git
from kunlunfork.bench.rebasecases import Case
from kunlunfork.rebase import anchor, scope


@dataclass(frozen=True)
class Job:
    """A case and the file of the release that it is to go to; `old` and `ours` differ from the case's on a ladder."""

    case: Case
    old: bytes
    ours: bytes
    new: bytes

    @property
    def path(self) -> bytes:
        return self.case.function.path


@dataclass(frozen=True)
class Outcome:
    """What a tool made of a job, None where it refused, and by which of its ways."""

    result: bytes | None
    way: str


def _name(number: int) -> str:
    return f"{number:05}.py"


def three_way(jobs: Sequence[Job], scratch: Path) -> list[Outcome]:
    """`git merge-tree`: all files in one tree, the first release as the base."""
    repo = scratch / "three-way.git"
    git.run(["init", "--quiet", "--bare", "--template=", repo])
    stream: list[bytes] = []
    for name, parent in (("old", ""), ("ours", "old"), ("new", "old")):
        stream.append(f"commit refs/heads/{name}\ncommitter bench <bench@invalid> 0 +0000\ndata 0\n".encode())
        if parent:
            stream.append(f"from refs/heads/{parent}\n".encode())
        for number, job in enumerate(jobs):
            data: bytes = getattr(job, name)
            stream.append(f"M 100644 inline {_name(number)}\ndata {len(data)}\n".encode() + data + b"\n")
    git.run(["fast-import", "--quiet", "--done"], git_dir=repo, stdin=b"".join([*stream, b"done\n"]))
    conflicts: set[str] = set()
    try:
        out = git.run(["merge-tree", "--write-tree", "--no-messages", "-z", "--name-only", "new", "ours"], git_dir=repo)
    except git.GitFailed as e:
        if e.returncode != 1:
            raise
        args = git.command(["merge-tree", "--write-tree", "--no-messages", "-z", "--name-only", "new", "ours"], repo)
        out = subprocess.run(args, capture_output=True, env=git.environment(), check=False).stdout
    tree, *names = out.decode().split("\0")
    conflicts.update(names)
    listing = "".join(f"{tree}:{_name(number)}\n" for number in range(len(jobs)))
    stream_out = git.run(["cat-file", "--batch"], git_dir=repo, stdin=listing.encode())
    shutil.rmtree(repo)
    return [
        Outcome(None if _name(number) in conflicts else data, "text") for number, data in enumerate(_batch(stream_out))
    ]


def _batch(out: bytes) -> list[bytes]:
    """The blobs in the output of `git cat-file --batch`."""
    found = []
    at = 0
    while at < len(out):
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        found.append(out[end + 1 : end + 1 + size])
        at = end + 2 + size
    return found


def _patch_of(jobs: Sequence[Job], scratch: Path) -> bytes:
    """All edits as one patch, as git makes it."""
    for side, name in (("a", "old"), ("b", "ours")):
        folder = scratch / side
        folder.mkdir()
        for number, job in enumerate(jobs):
            (folder / _name(number)).write_bytes(getattr(job, name))
    args = git.command(["diff", "--no-index", "--no-prefix", "a", "b"])
    done = subprocess.run(args, capture_output=True, cwd=scratch, env=git.environment(), check=False)
    shutil.rmtree(scratch / "a")
    shutil.rmtree(scratch / "b")
    return done.stdout


def _applied(jobs: Sequence[Job], scratch: Path, command: Sequence[str | bytes | Path], way: str) -> list[Outcome]:
    """Let a command that reads the patch from its standard input change the files, and see which it rejected."""
    tree = scratch / "tree"
    tree.mkdir()
    patch = _patch_of(jobs, scratch)
    for number, job in enumerate(jobs):
        (tree / _name(number)).write_bytes(job.new)
    env = git.environment({"GIT_CEILING_DIRECTORIES": str(scratch)})
    subprocess.run(command, input=patch, cwd=tree, env=env, capture_output=True, check=False)
    found = []
    for number in range(len(jobs)):
        file = tree / _name(number)
        rejected = file.with_name(f"{file.name}.rej").exists()
        found.append(Outcome(None if rejected else file.read_bytes(), way))
    shutil.rmtree(tree)
    return found


def git_apply(jobs: Sequence[Job], scratch: Path) -> list[Outcome]:
    """`git apply`, every hunk where its context is."""
    return _applied(jobs, scratch, git.command(["apply", "--reject", "-p1"]), "context")


def quilt(jobs: Sequence[Job], scratch: Path) -> list[Outcome]:
    """GNU patch as `quilt push` calls it: fuzz 2."""
    return _applied(jobs, scratch, ["patch", "-p1", "-f", "-s", "--no-backup-if-mismatch"], "context")


def kunlunfork(jobs: Sequence[Job], scratch: Path) -> list[Outcome]:
    """Three-way merge, the scope check, and statements where text conflicts or the check objects."""
    found = []
    for job, text in zip(jobs, three_way(jobs, scratch), strict=True):
        sides = (job.path, job.old, job.ours, job.new)
        refused = "conflict" if text.result is None else scope.check(*sides, text.result)
        if text.result is not None and refused is None:
            found.append(text)
            continue
        merged = anchor.merge(*sides)
        why = "conflict" if text.result is None else "objection"
        found.append(Outcome(merged, f"{why}, then {'statements' if merged is not None else 'refused'}"))
    return found


Tool = Callable[[Sequence[Job], Path], list[Outcome]]


def tools() -> dict[str, Tool]:
    """Those whose programs are there, by name."""
    found: dict[str, Tool] = {"kunlunfork": kunlunfork, "git 3-way": three_way, "git apply": git_apply}
    if shutil.which("patch") is not None:
        found["quilt"] = quilt
    return found
