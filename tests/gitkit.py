"""A git tree of a small upstream, a clone to export to, and a user whose git is set up badly."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from support import VERSION, Upstream

from kunlunfork import export, fork, newtree
from kunlunfork.content import Content
from kunlunfork.progress import Silent
from kunlunfork.sources.tree import has_git_state
from kunlunfork.store import Base, Store

# What people have in ~/.gitconfig, and what breaks patches that are made with it.
HOSTILE = """
[user]
  name = Zoë Ångström
  email = zoe@example.org
[diff]
  noprefix = true
  mnemonicPrefix = true
  external = /bin/false
  algorithm = patience
  context = 12
  interHunkContext = 5
  renames = copies
  colorMoved = zebra
  suppressBlankEmpty = true
  orderFile = {home}/order
[color]
  ui = always
[core]
  abbrev = 5
  autocrlf = true
  hooksPath = {home}/hooks
  attributesFile = {home}/attributes
  excludesFile = {home}/ignored
  quotePath = true
  whitespace = trailing-space,tab-in-indent
[commit]
  gpgSign = false
  template = {home}/template
[apply]
  whitespace = fix
[format]
  signature = hello
  subjectPrefix = RFC
[merge]
  conflictStyle = diff3
[filter "shout"]
  clean = tr a-z A-Z
  smudge = tr a-z A-Z
  required = true
[init]
  templateDir = {home}/templates
[rebase]
  autoSquash = true
[i18n]
  commitEncoding = UTF-8
"""


def user(home: Path) -> dict[str, str]:
    """The environment of a user with such a configuration."""
    (home / "hooks").mkdir(parents=True)
    hook = home / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    (home / "templates" / "hooks").mkdir(parents=True)
    (home / "attributes").write_text("*.py filter=shout text eol=crlf ident diff=nothing\n* -diff\n")
    (home / "ignored").write_text("*.rej\n")
    (home / "order").write_text("*\n")
    (home / "template").write_text("template\n")
    (home / ".gitconfig").write_text(HOSTILE.format(home=home), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_EDITOR": "true"}


@dataclass
class Author:
    """One who changes the fork: a git tree, a clone, and git as the user has it."""

    tree: Path
    clone: Content
    env: dict[str, str]
    store: Store
    start: dict[str, bytes] = field(default_factory=dict)

    def git(self, *args: str, stdin: str | None = None, **env: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.tree, env={**self.env, **env}, input=stdin, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout.strip()

    def write(self, path: str, data: str | bytes) -> None:
        full = self.tree / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data.encode() if isinstance(data, str) else data)

    def read(self, path: str) -> bytes:
        return (self.tree / path).read_bytes()

    def replace(self, path: str, old: bytes, new: bytes) -> None:
        data = self.read(path)
        assert old in data, (path, old)
        self.write(path, data.replace(old, new, 1))

    def commit(self, message: str, *paths: str) -> str:
        self.git("add", "--all", *(paths or (".",)))
        self.git("commit", "--quiet", "--cleanup=verbatim", "-F", "-", stdin=message)
        return self.git("rev-parse", "HEAD")

    def rebase(self, todo: str) -> None:
        """An interactive rebase whose list of steps is the output of `todo`, a shell filter."""
        self.git(
            "rebase",
            "--quiet",
            "-i",
            "upstream",
            GIT_SEQUENCE_EDITOR=f'edit() {{ {todo} "$1" > "$1.new" && mv "$1.new" "$1"; }}; edit',
        )

    def plan(self, **options: object) -> export.Plan:
        return export.plan(self.clone, self.tree, **options)  # type: ignore[arg-type]

    def export(self, **options: object) -> export.Plan:
        planned = self.plan(**options)
        export.carry_out(self.clone, self.tree, planned)
        assert self.plan(**options).writes == (), "an export leaves nothing to export"
        return planned

    def files(self) -> dict[str, bytes]:
        """Every file of the clone's patches and overlay."""
        found = {}
        for folder in (self.clone.patches, self.clone.overlay):
            for file in sorted(folder.rglob("*")):
                if file.is_symlink():
                    found[str(file.relative_to(self.clone.root))] = b"-> " + os.fsencode(file.readlink())
                elif file.is_file():
                    found[str(file.relative_to(self.clone.root))] = file.read_bytes()
        return found

    def changed(self) -> set[str]:
        """The files of the clone that are not as at the start."""
        now = self.files()
        return {name for name in {*now, *self.start} if now.get(name) != self.start.get(name)}

    def series(self) -> list[str]:
        return (self.clone.patches / VERSION / "series").read_text().split()

    def patch(self, name: str) -> bytes:
        return (self.clone.patches / VERSION / name).read_bytes()

    def check(self) -> None:
        """Applied anew, the clone gives the files of HEAD."""
        built = fork.load(self.clone, VERSION)
        again = self.tree.with_name("again")
        shutil.rmtree(again, ignore_errors=True)
        base = self.store.find("sdist", VERSION)
        assert base is not None
        newtree.create(built, base, self.store, again, as_git=True, dry_run=False, progress=Silent())
        mine, theirs = (
            subprocess.run(
                ["git", "-C", root, "rev-parse", "HEAD^{tree}"], capture_output=True, check=True, env=self.env
            )
            for root in (self.tree, again)
        )
        assert mine.stdout == theirs.stdout


def author(folder: Path, upstream: Upstream, content: Content) -> Author:
    """An author with a fresh tree and a fresh clone."""
    clone = Content(folder / "clone", clone=True)
    for name in ("patches", "overlay"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(content.root / name, clone.root / name, symlinks=True, ignore=ignore)
    store = Store(folder / "store.git")
    members = [(path, entry.mode, data) for path, (entry, data) in sorted(upstream.files.items())]
    base: Base = store.import_members("sdist", VERSION, "5d" * 32, members)
    tree = folder / "tree"
    newtree.create(
        fork.load(clone, VERSION), base, store, tree, as_git=True, clone=clone.root, dry_run=False, progress=Silent()
    )
    assert has_git_state(tree)
    made = Author(tree, clone, user(folder / "home"), store)
    made.start = made.files()
    return made


def copy(template: Author, folder: Path) -> Author:
    """The same author elsewhere; the store, which nobody changes, is shared."""
    tree, clone = folder / "tree", Content(folder / "clone", clone=True)
    for source, target in ((template.tree, tree), (template.clone.root, clone.root)):
        shutil.copytree(source, target, symlinks=True)
    return Author(tree, clone, user(folder / "home"), template.store, template.start)
