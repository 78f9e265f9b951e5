"""Git plumbing under our own conditions: no user configuration, no hooks, no inherited GIT_*, bytes in and out."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kunlunfork.errors import ForkError

# Byte for byte: no attribute that a release ships may change what is stored or written out (eol, ident, filters).
ATTRIBUTES = "* -text -ident -filter -diff -merge -working-tree-encoding -export-subst -export-ignore\n"

# merge-tree --write-tree, which rebase needs, came with 2.38.
MINIMUM = (2, 38)

# What git needs from outside: to be found, to reach the network, to ask an agent. Nothing else is inherited.
_KEPT = (
    "PATH", "HOME", "TMPDIR", "USER", "LOGNAME",
    "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.eol=lf",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.quotePath=false",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.precomposeUnicode=false",
    "core.useReplaceRefs=false",
    "apply.whitespace=nowarn",
    "diff.renames=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that every git of ours runs in."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_OPTIONAL_LOCKS="0",
        GIT_AUTHOR_NAME="kunlunfork",
        GIT_AUTHOR_EMAIL="kunlunfork@invalid",
        GIT_COMMITTER_NAME="kunlunfork",
        GIT_COMMITTER_EMAIL="kunlunfork@invalid",
        LC_ALL="C",
    )
    env.update(extra or {})
    return env


def command(args: Sequence[str | bytes | Path], git_dir: Path | None = None) -> list[str | bytes | Path]:
    """The argument vector of `git ARGS` with our settings pinned."""
    settings: list[str | bytes | Path] = [part for setting in _SETTINGS for part in ("-c", setting)]
    where: list[str | bytes | Path] = [] if git_dir is None else [f"--git-dir={git_dir}"]
    return ["git", *settings, *where, *args]


def missing() -> ForkError:
    return ForkError(
        "git is not installed",
        expected=f"git {MINIMUM[0]}.{MINIMUM[1]} or newer on PATH",
        fix="apt-get install git",
    )


class GitFailed(ForkError):
    """A git command of ours that ended with an error; what it wrote is kept for the caller."""

    def __init__(self, args: Sequence[object], returncode: int, stderr: bytes, stdout: bytes = b"") -> None:
        self.returncode = returncode
        self.stderr = stderr
        self.stdout = stdout
        text = stderr.decode(errors="replace").strip()
        super().__init__(f"git {_verb(args)} failed", found=text or f"exit status {returncode}")


def _verb(args: Sequence[object]) -> str:
    words = iter(map(str, args))
    for word in words:
        if word in ("-c", "-C"):
            next(words, None)  # its value
        elif not word.startswith("-"):
            return word
    return ""


def run(
    args: Sequence[str | bytes | Path],
    *,
    git_dir: Path | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> bytes:
    """Run `git ARGS` to its end and return what it wrote to stdout.

    Raises:
        GitFailed: git ended with a status other than 0.
        ForkError: git is not there.
    """
    try:
        done = subprocess.run(
            command(args, git_dir),
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=environment(env),
            check=False,
        )
    except FileNotFoundError as e:
        if cwd is not None and not cwd.is_dir():
            raise ForkError(f"{cwd} is not a folder") from e
        raise missing() from e
    if done.returncode:
        raise GitFailed(args, done.returncode, done.stderr, done.stdout)
    return done.stdout


def check_version() -> None:
    """Refuse a git that is too old (raises `ForkError`). It is asked once in a process."""
    _check_version(os.environ.get("PATH"))


@functools.lru_cache(maxsize=1)
def _check_version(path: str | None) -> None:
    text = run(["version"]).decode(errors="replace").strip()
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM:
        raise ForkError(
            "git is too old",
            found=text,
            expected=f"git {MINIMUM[0]}.{MINIMUM[1]} or newer",
            fix="apt-get install git",
        )


def configured(name: str) -> list[bytes]:
    """The values of a setting in the user's own configuration, not in that of a repository; none without git."""
    env = {name: value for name, value in os.environ.items() if name in _KEPT or name == "XDG_CONFIG_HOME"}
    try:
        done = subprocess.run(
            ["git", "config", "--null", "--get-all", name], cwd=os.sep, env=env, capture_output=True, check=False
        )
    except FileNotFoundError:
        return []
    return done.stdout.split(b"\0")[:-1]


@contextlib.contextmanager
def trusted_folders() -> Iterator[dict[str, str]]:
    """An environment with the user's `safe.directory`, nothing else of the user's: git hears it from files only."""
    with tempfile.NamedTemporaryFile(prefix="kunlunfork-") as file:
        for folder in configured("safe.directory"):
            escaped = folder.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
            file.write(b'[safe]\n\tdirectory = "%s"\n' % escaped)
        file.flush()
        yield {"GIT_CONFIG_GLOBAL": file.name}
